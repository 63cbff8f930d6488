"""Which authorities a TLS connection trusts: those that this machine trusts, a company's own too.

The clients' own lists know public authorities alone, and servers inside a company have none of
those. ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` count, as everywhere with OpenSSL.
"""

from __future__ import annotations

import ssl
from pathlib import Path


def authorities() -> str | bool:
    """The file or folder of the machine's certificates; ``True``, a client's own list, where there
    is none."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return paths.cafile
    if paths.capath and any(Path(paths.capath).glob("*.[0-9]")):
        return paths.capath
    return True
