"""Fetches wheels that are known by their digests: what the scripts beside this one put test material together from.

Standard library only. A new version is entered with the digests that the index has of it:
`pip install --dry-run --no-deps --ignore-installed --report - NAME==VERSION` says them, for each Python and machine with the
words of `pip download` that choose those.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

# One wheel each, but where there is one for each version of Python, from 3.10 on, or for each machine as well.
SHA256 = {
    "nvidia-cuda-runtime==13.5.37": ("df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",),
    "nvidia-cuda-crt==13.5.37": ("e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",),
    "nvidia-cuda-cccl==13.3.5.0.6": ("d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",),
    "nvidia-nccl-cu12==2.19.3": ("a9734707a2c96443331c1e48c717024aa6678a0e2a4cb66b2c364d18cee6b48d",),
    "nvidia-nccl-cu13==2.32.3": ("1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",),
    "rocm-bindings-core==10.0.0.0.1.2": (
        "2296f7154bf569fdfe5819f9c41e26510dfe24eb7bfe957f9432bf7faa72d66f",  # cp310
        "943da68c125cbc7f9ecdc8106241881ae29b36fd6b20e62ac0a7bc2782a41041",  # cp311
        "5f6111926679b4d64b79dd547a737d38814b77cb39b1db95d790c55958009d90",  # cp312 and newer
    ),
    "rocm-bindings-hip==10.0.0.0.1.2": (
        "89b3f6018e49b817d94e531aa455d672ce89852a4472434a0c2ee00a07d18241",  # cp310
        "b288d26fac3ab77d2f25f4b832397abb1d01157871f23226f9dd389e92b22ee4",  # cp311
        "9d31be6c1a4c19d4ded2f2222da3f4bce14d81c58680bd119bffce983e466039",  # cp312 and newer
    ),
    "rocm-bindings-systems==10.0.0.0.1.2": (
        "d5eecb2de89cf9d156617ef3c33d8bbed30b89ea42dddd870d40e624addddf0f",  # cp310
        "6e49433cceaf8a5bcb6991b7319042a5db66998fd605cf51bbefa0109ab8df84",  # cp311
        "5a73bbe25009608f1a72f1bb85230ddf8543c333c6fe8b16f6e7e6bbc1e0fabb",  # cp312 and newer
    ),
    "torch-npu==2.13.0": ("0deb809cf447d3fce636ccfdc9c9f874950f1fe76f18f4aaab31e2d345f7dac0",),
    "oneccl-devel==2022.1.0": ("a79702a86fdc957d9e886a1d107e63d43274ed66321301c29d96f803917e36ae",),
    "oneccl-devel==2022.2.0": ("6df69cc33962e48f401041bd788991bd47f82d3b1be3ed788aa184293c581cf2",),
    "oneccl==2022.2.0": ("02c2f52434bfad50cc2d00be6e97fd81e3f365d279ac7bdabd2e3b656194c19f",),
    "oneccl-cpu==2022.2.0": ("cc912935bd882b4328a569f70a475942e6e77994255775bde7de6452a982af54",),
    "impi-rt==2021.14.2": ("85b442ecde084d338842186aea0a5c1e7ede2302d5c02f013d6808a4fa8bc41d",),
    "cupy-cuda13x==14.2.0": (
        "351e33aa4260dd89359b243cc8ce3ee76c08e4ed4d1bafaaaec2b882f42e59f8",  # cp310 x86_64
        "006987701f5b9e248c357358159c9e38252b38dbb65fbc7ec15dc38d04fca462",  # cp310 aarch64
        "f94843e54500a9c8c169135f79572bfaba946efe4f7178e834c227280c1b0c12",  # cp311 x86_64
        "a22e2f17c97940cd566f351f186d8fe04285280d052ca1512ff223febbe9979c",  # cp311 aarch64
        "9aafadbe29db3d4285026044aafeb28f2a3de4bd0df70718ec6892b7d27a4ded",  # cp312 x86_64
        "0a9b6538079c5151dcd99cf44b94cc3f1242315b7de0498b4619cef9b2a7c2c8",  # cp312 aarch64
        "5b79a606f6639d9bed74ef7072f36756a95a804c86d7adb367b39307ac771600",  # cp313 x86_64
        "449af7f608dc70ce64e8c45cf5a6ea0bbef51623e7c806b1a43445ae3c76e1e0",  # cp313 aarch64
        "ff0bdebd1b43c0c6db53095784c787c4e4eae671356cf521c4b7482ed78a1a7e",  # cp314 x86_64
        "7ac57c4e16c62f265b5ecc2b45d6bbafe9dc70a99b849ed6cfb8d16f32204589",  # cp314 aarch64
    ),
    "cuda-pathfinder==1.9.0": ("622df7440f7702f36b7a02a1699aa0b084fe04034d9939188fee9b16d0c36366",),
}
TRIES = 3
T = TypeVar("T")


def tried(act: Callable[[], T], *failures: type[Exception]) -> T:
    """What it gives. One failure may be the network's, or the index's, and is no reason to end hours of work."""
    for left in range(TRIES - 1, -1, -1):
        try:
            return act()
        except failures as e:
            if left == 0:
                raise
            print(f"{type(e).__name__}: {e}; once more", file=sys.stderr, flush=True)
            time.sleep(5)
    raise AssertionError


def name_of(requirement: str) -> str:
    return requirement.split("==")[0]


def download(folder: str | Path, requirements: Sequence[str], *words: str) -> dict[str, Path]:
    """Each of them, and where its wheel is. `words` choose among those of several machines and Pythons."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        for requirement in requirements:
            listed.write(" ".join([requirement, *(f"--hash=sha256:{digest}" for digest in SHA256[requirement])]) + "\n")
        listed.flush()
        command += ["--require-hashes", "--dest", str(folder), *words, "--requirement", listed.name]
        tried(lambda: subprocess.run(command, check=True, stdin=subprocess.DEVNULL), subprocess.CalledProcessError)
    found = {path.name.split("-")[0].replace("_", "-"): path for path in Path(folder).glob("*.whl")}
    return {requirement: found[name_of(requirement)] for requirement in requirements}
