"""The page: the files of page/ and the data in one HTML file, which loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / 'page'


def page(data: dict[str, Any], live: bool = False) -> str:
    """Return the page.

    The policy in it lets browsers run this script and no other, and connect to nothing but the
    server that the page came from, which is asked for new data where ``live``.

    Args:
        data: What ``page_data`` returns.
        live: Whether a server renews the data.
    """
    style, script = sources()
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    fields = {
        '{{policy}}': policy,
        '{{style}}': style,
        '{{data}}': in_html({**data, 'live': live}),
        '{{script}}': script,
    }
    parts = [(FOLDER / 'index.html').read_text()]
    for name, value in fields.items():  # not replaced one by one: a value may hold a name
        before, after = parts.pop().split(name)
        parts += [before, value, after]
    return ''.join(parts)


@cache
def sources() -> tuple[str, str]:
    """The style and the script of the page."""
    style = '\n'.join((FOLDER / name).read_text() for name in ('uplot.min.css', 'style.css'))
    own = '\n'.join(path.read_text() for path in sorted(FOLDER.glob('[0-9]_*.js')))
    library = (FOLDER / 'uplot.min.js').read_text()
    return style, f"{library}\n(() => {{\n'use strict';\n{own}}})();\n"


def digest(text: str) -> str:
    """The hash by which a policy names a script or a style."""
    return f'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'


def in_html(data: Any) -> str:
    """JSON that no HTML parser takes for markup, whatever the names of runs are."""
    text = json.dumps(data, separators=(',', ':'), allow_nan=False)
    return text.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')
