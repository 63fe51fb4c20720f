"""A program: calls the named functions of pyhccl with numbers that are all different, each as wide as pyhccl takes it.

After each it prints `passed [name, [[number, bits], ...]]`: those that the library has to get, in this order; 0 bits: of an
unknown width.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pyhccl

# pybind11 refuses a number that the parameter of C cannot hold.
WIDE = {64: 0x5A3C96E1D2B40000, 32: 0x7EAD0000, 8: 0x40}
# Of these it allocates as many.
SMALL = ("infoLen", "threadNum", "descNum")
# It hands over the address of a copy.
BY_ADDRESS = {("HcclCreateSubCommConfig", "comm"), ("HcclRankGraphGetEndpointDesc", "descNum")}
LISTS = {
    "sendRecvInfo": "HcclSendRecvItem",
    "rootInfoList": "HcclRootInfo",
    "channelDescs": "HcclChannelDesc",
    "config": "ThreadConfig",
}


def number(place: int, bits: int) -> int:
    return WIDE[bits] + (place + 1) * (1 if bits == 8 else 257)


def attempt(function: Any, arguments: list[Any]) -> bool:
    try:
        function(*arguments)
    except TypeError:
        return False
    except Exception:  # what it makes of the library's answer is its own
        return True
    return True


def call(name: str) -> None:
    function = getattr(pyhccl, name)
    signature = re.match(r"\w+\((.*)\) ->", function.__doc__.strip())
    assert signature, function.__doc__
    parts = [part.partition(": ") for part in signature[1].split(", ")] if signature[1] else []
    labels, kinds = [part[0] for part in parts], [part[2] for part in parts]
    arguments: list[Any] = []
    bits = [-1] * len(kinds)  # is no number
    for place, kind in enumerate(kinds):
        if "SupportsInt" in kind:
            bits[place] = 0 if labels[place] in SMALL else 8
            if (name, labels[place]) in BY_ADDRESS:
                bits[place] = -1
            arguments.append(number(place, 8))
        elif kind == "str":
            arguments.append("text")
        elif kind == "object":
            of = LISTS.get(labels[place])
            arguments.append([getattr(pyhccl, of)()] if of else [1, 2])
        else:
            made = getattr(pyhccl, kind.rpartition(".")[2])
            members = list(getattr(made, "__members__", {}).values())
            bits[place] = 32 if members else -1
            arguments.append(members[-1] if members else made())
    assert attempt(function, arguments), f"{name}{arguments}"
    for place in range(len(kinds)):
        for width in (64, 32) if bits[place] == 8 else ():
            wider: list[Any] = [*arguments[:place], number(place, width), *arguments[place + 1 :]]
            if attempt(function, wider):
                arguments, bits[place] = wider, width
                break
    attempt(function, arguments)
    given = [(int(argument), width) for argument, width in zip(arguments, bits, strict=True) if width >= 0]
    print("passed", json.dumps([name, given]), flush=True)


for word in sys.argv[1:]:
    call(word)
