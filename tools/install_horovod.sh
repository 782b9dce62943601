#!/usr/bin/env bash
# Build Horovod 0.28.1 against the torch of a Python environment, and install it there.
#
#   tools/install_horovod.sh [--no-retry] [PYTHON]        PYTHON: .venv/bin/python unless given
#
# With --no-retry, a compilation that failed before under the same conditions is not tried again.
# The wheel is kept in ${XDG_CACHE_HOME:-~/.cache}/dgc/wheels under everything that it depends on, so
# that the next environment takes seconds. Gloo is always built in; MPI where mpicxx is found (not
# with HOROVOD_WITHOUT_MPI=1). Horovod's own settings, such as HOROVOD_GPU_OPERATIONS=NCCL, are
# respected. When it cannot be built, one line says why, and the exit status is 1.
set -euo pipefail

VERSION=0.28.1
SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
PATCH=$(cd "$(dirname "$0")" && pwd)/horovod-$VERSION.patch
RETRY=yes
if [ "${1:-}" = --no-retry ]; then
  RETRY=no
  shift
fi
PY=${1:-.venv/bin/python}

fail() {
  echo "Horovod cannot be built: $1. \`make run ENGINE=torch\` does the same job under torchrun." >&2
  exit 1
}

[ -x "$PY" ] || PY=$(command -v "$PY") || fail "there is no Python at ${1:-.venv/bin/python}"
PY=$(cd "$(dirname "$PY")" && pwd)/$(basename "$PY")
PREFIX=$("$PY" -c 'import sys; print(sys.prefix)')
TORCH=$("$PY" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null) ||
  fail 'torch is not installed yet (make setup)'
TAG=$("$PY" -c 'import platform, sys; print("cp%d%d-%s" % (*sys.version_info[:2], platform.machine()))')

if [ "${HOROVOD_WITHOUT_MPI:-0}" != 1 ] && command -v mpicxx >/dev/null; then
  MPI=mpi
  export HOROVOD_WITH_MPI=1
else
  MPI=nompi
  unset HOROVOD_WITH_MPI
  export HOROVOD_WITHOUT_MPI=1
fi
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1

# What else shapes the binary: the patch, the MPI it is linked with, Horovod's build settings.
DIGEST=$({
  cat "$PATCH"
  [ $MPI = nompi ] || mpicxx -show 2>/dev/null || true
  env | grep -E '^HOROVOD_(GPU|CPU_OP|CUDA|NCCL|ROCM|DDL|WITH|BUILD|ALLOW|DEBUG)' | LC_ALL=C sort || true
} | cksum | cut -d' ' -f1)
KEY=horovod-$VERSION-torch-$TORCH-$TAG-$MPI-$DIGEST

INSTALLED=$PREFIX/.horovod-installed
FAILED=$PREFIX/.horovod-failed
LOG=$PREFIX/horovod-build.log
if [ "$(cat "$INSTALLED" 2>/dev/null)" = "$KEY" ] &&
  "$PY" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("horovod") is None)'; then
  exit 0
fi

build() { # puts one wheel into the folder $1
  local work=$1/work jobs memory
  mkdir "$work"
  echo "horovod==$VERSION --hash=sha256:$SHA256" >"$work/requirement.txt"
  "$PY" -m pip download --disable-pip-version-check --no-deps --no-build-isolation --no-binary horovod \
    -d "$work" -r "$work/requirement.txt"
  tar -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
  cd "$work/horovod-$VERSION"
  # Not every machine has both. Git passes over files of a repository that it finds itself inside of.
  if command -v patch >/dev/null; then patch -p1 <"$PATCH"; else
    GIT_CEILING_DIRECTORIES=$work git apply "$PATCH"
  fi
  # One compiler a core, unless memory is short: each takes up to 1.5 GB.
  jobs=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || echo "$jobs")
  if [ "$memory" -lt "$jobs" ]; then jobs=$((memory > 1 ? memory : 1)); fi
  # The environment's own cmake (older than 4) comes first. Started by make, this must not talk to
  # make's job server, which is not there for it.
  unset MAKELEVEL MFLAGS
  PATH=$(dirname "$PY"):$PATH MAKEFLAGS=-j$jobs CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
    "$PY" -m pip wheel --disable-pip-version-check --no-cache-dir -v --no-deps --no-build-isolation -w "$1" .
}

CACHE=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
CACHE=${CACHE:-${TMPDIR:-/tmp}/dgc-cache-$(id -u)}/dgc/wheels # without a home, as the kernels' cache
if [ -e "$CACHE" ] && [ ! -O "$CACHE" ] && [ "$(stat -Lc %u "$CACHE")" != 0 ]; then
  fail "$CACHE belongs to another user: set XDG_CACHE_HOME"
fi
WHEEL=$(find "$CACHE/$KEY" -name '*.whl' 2>/dev/null | head -n 1) || true # none yet
if [ -z "$WHEEL" ]; then
  read -ra CXX_WORDS <<<"${CXX:-c++}" # it may come with options: g++ -m64
  command -v "${CXX_WORDS[0]}" >/dev/null || command -v g++ >/dev/null ||
    fail 'no C++ compiler was found (Debian: g++)'
  command -v make >/dev/null || fail 'make was not found'
  "$PY" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    fail "the headers of Python were not found (Debian: python3-dev)"
  command -v patch >/dev/null || command -v git >/dev/null || fail 'neither patch nor git was found'
  mkdir -p "$CACHE" 2>/dev/null || fail "$CACHE cannot be written (set XDG_CACHE_HOME)"

  if [ $RETRY = no ] && [ "$(cat "$FAILED" 2>/dev/null)" = "$KEY" ]; then
    fail "the compilation failed before, see $LOG (\`make horovod\` tries again)"
  fi

  echo "Building Horovod $VERSION against torch $TORCH with gloo$([ $MPI = nompi ] || echo ' and MPI'): some minutes, once (log: $LOG)"
  SCRATCH=$(mktemp -d "$CACHE/.building-XXXXXX")
  trap 'rm -rf "$SCRATCH"' EXIT
  # A shell of its own, since in a condition the functions of this one run on past errors.
  export PY PATCH VERSION SHA256
  bash -euo pipefail -c "$(declare -f build); build \"\$1\"" build "$SCRATCH" >"$LOG" 2>&1 </dev/null || {
    echo "$KEY" >"$FAILED"
    fail "the compilation failed, see $LOG"
  }
  rm -rf "$SCRATCH/work"
  chmod 755 "$SCRATCH"
  # Somebody else may have been quicker: either wheel is good.
  mv -T "$SCRATCH" "$CACHE/$KEY" 2>/dev/null || true
  WHEEL=$(find "$CACHE/$KEY" -name '*.whl' | head -n 1)
fi

"$PY" -m pip install --disable-pip-version-check -q --no-deps --force-reinstall "$WHEEL" >>"$LOG" 2>&1 &&
  "$PY" -c 'import horovod.torch' >>"$LOG" 2>&1 ||
  fail "its wheel $WHEEL does not install or import, see $LOG"
rm -f "$FAILED"
echo "$KEY" >"$INSTALLED"
echo "Installed Horovod $VERSION with gloo$([ $MPI = nompi ] || echo ' and MPI')"
