"""Ends of answers files that are too deep or repetitive, and a part of each message."""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n"
BOMB += "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n"
    for last, name in zip("abcdefg", "bcdefgh", strict=True)
)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "deep": ("a: " + "[" * 2_000 + "]" * 2_000, "recursion"),
    "aliases": (BOMB, "it has an alias"),
    "alias of itself": ("a: &a [*a]\n", "it has an alias"),
    "a null byte": ("a: \0\n", "special characters"),
    "not UTF-8": (b"a: \xff\n", "utf-8"),
    "an object": ("a: !!python/object/apply:os.system ['touch /tmp/hacked']\n", "constructor"),
    "a list as a key": ("? [a]\n: 1\n", "unhashable"),
    "a bad date": ("a: 2025-99-99\n", "month"),
}
