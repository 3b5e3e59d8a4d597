"""Ends of answers files that are too large, deep or repetitive, and a part of each message."""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n"
BOMB += "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n" for last, name in zip("abcdefg", "bcdefgh", strict=True)
)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "deep": ("a: " + "[" * 100_000 + "]" * 100_000, "levels deep"),
    "aliases": (BOMB, "it uses the alias *a"),
    "alias of itself": ("a: &a [*a]\n", "it uses the alias *a"),
    "8 MB": ("a: " + "x" * 8_000_000, "larger than 1 MiB"),
    "a null byte": ("a: \0\n", "control characters"),
    "not UTF-8": (b"a: \xff\n", "utf-8"),
    "an object": ("a: !!python/object/apply:os.system ['touch /tmp/hacked']\n", "constructor"),
    "a list as a key": ("? [a]\n: 1\n", "unhashable"),
    "a bad date": ("a: 2025-99-99\n", "month"),
}
