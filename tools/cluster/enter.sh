#!/bin/sh
# enter.sh NAME COMMAND-LINE: run a command line on the machine NAME, like `ssh NAME ...`: with its
# network (the namespace of that name), its /etc/hosts and its host name.
name=$1
shift
exec ip netns exec "$name" unshare --uts \
    sh -c 'echo "$0" >/proc/sys/kernel/hostname; exec sh -c "$*"' "$name" "$@"
