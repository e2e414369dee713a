"""The crates that are linked into the libraries of a wheel: their licences, and a bill of materials.

Run, it writes THIRD-PARTY-LICENSES and crates/python/openmrc.cdx.json, which go into every wheel. Both depend
on Cargo.lock alone, so they are in the repository, and `make release` refuses those of another Cargo.lock.
"""

import json
import re
import subprocess
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARIES = ("openmrc-python", "openmrc-capi")
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
TEXTS = ROOT / "THIRD-PARTY-LICENSES"
MATERIALS = ROOT / "crates/python/openmrc.cdx.json"
RULE = "-" * 80


@dataclass(frozen=True, order=True)
class Crate:
    """A crate of others."""

    name: str
    version: str
    licence: str
    """An SPDX expression, as its manifest has it."""
    directory: Path
    """Where cargo has unpacked it."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def main() -> None:
    """Writes both files."""
    crates = linked()
    TEXTS.write_text(texts(crates))
    MATERIALS.write_text(materials(crates))
    print(f"{len(crates)} crates in {TEXTS.name} and {MATERIALS.relative_to(ROOT)}")


def linked() -> list[Crate]:
    """The crates of others in both libraries, on every processor of the wheels."""
    names = set()
    for library in LIBRARIES:
        targets = [argument for target in TARGETS for argument in ("--target", target)]
        tree = ("tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", library)
        names |= {tuple(line.split()[:2]) for line in _cargo(*tree, *targets).splitlines() if line}
    packages = json.loads(_cargo("metadata", "--format-version", "1"))["packages"]
    return sorted(
        Crate(each["name"], each["version"], each["license"] or "", Path(each["manifest_path"]).parent)
        for each in packages
        if (each["name"], f"v{each['version']}") in names and each["source"] is not None
    )


def texts(crates: list[Crate]) -> str:
    """Each text of a licence once, below the crates that come with it."""
    users: dict[str, list[Crate]] = defaultdict(list)
    without = []
    for crate in crates:
        files = [file for file in sorted(crate.directory.iterdir()) if _is_licence(file)]
        for text in dict.fromkeys(file.read_text().strip() for file in files):
            users[text].append(crate)
        if not files:
            without.append(crate)
    parts = ["openmrc's libraries contain these crates of others, under these licences.\n"]
    parts += [f"{crate}: {crate.licence}" for crate in crates]
    if without:
        parts.append(f"\nWithout a text of their own: {', '.join(map(str, without))}.")
    for text, those in sorted(users.items(), key=lambda item: (item[1], item[0])):
        parts.append(f"\n{RULE}\n{', '.join(map(str, those))}\n{RULE}\n\n{text}")
    return "\n".join(parts) + "\n"


def materials(crates: list[Crate]) -> str:
    """The bill of materials, in the format CycloneDX 1.5."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(each["name"], each["version"]): each.get("checksum") for each in locked}
    own = {
        "type": "library",
        "bom-ref": f"pkg:pypi/openmrc@{version}",
        "name": "openmrc",
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": f"pkg:pypi/openmrc@{version}",
    }
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:cargo/{crate.name}@{crate.version}",
            "name": crate.name,
            "version": crate.version,
            "hashes": [{"alg": "SHA-256", "content": sums[crate.name, crate.version]}],
            "licenses": [{"expression": crate.licence.replace("/", " OR ")}],
            "purl": f"pkg:cargo/{crate.name}@{crate.version}",
        }
        for crate in crates
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(document, indent=1) + "\n"


def _is_licence(file: Path) -> bool:
    return file.is_file() and re.match(r"(?i)(un)?licen[cs]e|copying|copyright|notice", file.name) is not None


def _cargo(*arguments: str) -> str:
    command = ["cargo", *arguments, "--locked", "--offline"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
