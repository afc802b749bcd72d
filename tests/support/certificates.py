"""Certificates for tests of TLS, made by openssl in a directory of the test's own."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import needed


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


class Authority:
    """A certificate authority. Others trust `certificate`."""

    def __init__(self, home: Path, name: str = "ca") -> None:
        self.home = home
        self.key = home / f"{name}.key"
        self.certificate = home / f"{name}.pem"
        openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-keyout",
            str(self.key),
            "-out",
            str(self.certificate),
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )

    def issue(self, name: str, subject: str, alternative: str = "") -> Pair:
        """Issue a certificate.

        `subject` as openssl has it ("/CN=bunny/O=client"), `alternative` too ("IP:127.0.0.1")."""
        pair = Pair(self.home / f"{name}.pem", self.home / f"{name}.key")
        request, extensions = self.home / f"{name}.csr", self.home / f"{name}.ext"
        openssl(
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-utf8",
            "-subj",
            subject,
            "-keyout",
            str(pair.key),
            "-out",
            str(request),
        )
        extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "basicConstraints=CA:FALSE\n")
        openssl(
            "x509",
            "-req",
            "-in",
            str(request),
            "-CA",
            str(self.certificate),
            "-CAkey",
            str(self.key),
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            str(extensions),
            "-out",
            str(pair.certificate),
        )
        return pair


def openssl(*arguments: str) -> None:
    done = subprocess.run([needed("openssl"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
