"""Which names a project may have: safe as a folder, as a Python package, and beside what the project imports."""

import keyword
import re
import sys

from ..shared.answers import package_of
from ..shared.errors import FastprojError

LONGEST = 60

# Devices of Windows, where a repository must be able to be checked out as well.
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)}

# What rendered projects import or run; a package of the same name would hide it, or be hidden. By import name and by
# distribution's name, with underscores.
_DEPENDENCIES = {
    "absl", "absl_py", "accelerate", "aiohappyeyeballs", "aiohttp", "aiosignal", "anyio", "ast_serialize",
    "async_timeout", "attr", "attrs", "certifi", "charset_normalizer", "click", "cloudpickle", "colorama", "conftest",
    "contourpy", "copier", "cuda", "cycler", "datasets", "dateutil", "docstring_parser", "fastproj", "filelock",
    "flatbuffers", "fonttools", "frozenlist", "fsspec", "functorch", "google", "grpc", "grpcio", "h11", "hatchling",
    "hf_xet", "httpcore", "httpcore2", "httpx", "httpx2", "huggingface_hub", "idna", "importlib_resources",
    "iniconfig", "jinja2", "joblib", "jsonargparse", "kiwisolver", "librt", "lightning", "lightning_fabric",
    "lightning_utilities", "markdown", "markupsafe", "matplotlib", "ml_dtypes", "mpl_toolkits", "mpmath", "multidict",
    "mypy", "mypy_extensions", "narwhals", "networkx", "numpy", "nvidia", "onnx", "onnx_ir", "onnxruntime",
    "onnxscript", "packaging", "pandas", "pathspec", "pil", "pillow", "pip", "pluggy", "polars", "polars_runtime_32",
    "propcache", "protobuf", "psutil", "py", "pyarrow", "pygments", "pylab", "pyparsing", "pytest", "pytest_timeout",
    "python_dateutil", "pytorch_lightning", "pytorch_optimizer", "pyyaml", "regex", "requests", "ruff", "safetensors",
    "scikit_learn", "scipy", "setuptools", "sitecustomize", "six", "sklearn", "sympy", "tensorboard",
    "tensorboard_data_server", "threadpoolctl", "tiktoken", "tiktoken_ext", "tokenizers", "tomli", "torch", "torchao",
    "torchaudio", "torchmetrics", "torchrun", "torchvision", "tqdm", "transformers", "triton", "truststore",
    "types_tqdm", "typeshed_client", "typing_extensions", "tzdata", "urllib3", "usercustomize", "werkzeug", "wheel",
    "yaml", "yarl",
}  # fmt: skip

# Folders of the project itself, from which Python would import before it looks for the package.
_FOLDERS = {"build", "configs", "dist", "docs", "launch", "runs", "src", "test", "tests", "tools"}


def check(name: str) -> None:
    """Make sure that a project may have this name.

    Raises:
        FastprojError: it may not; says why, and suggests one that may where that is easy.
    """
    if not name:
        raise FastprojError("the project's name is empty: give one, such as my-project")
    if len(name) > LONGEST:
        raise FastprojError(f"the project's name has {len(name)} characters: use at most {LONGEST}")
    if not re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", name):
        raise FastprojError(
            f"the project's name {name!r} is not allowed: use small letters, digits, - and _, beginning with a letter "
            f"and ending with a letter or digit{_suggestion(name)}"
        )
    package = package_of(name)
    reasons = {
        "a word of the Python language": keyword.iskeyword(package) or keyword.issoftkeyword(package),
        "a module of Python's standard library": package in sys.stdlib_module_names,
        "a package that the project uses": package in _DEPENDENCIES,
        "a folder of the project itself": package in _FOLDERS,
        "a device's name on Windows": package in _DEVICES,
    }
    for reason, holds in reasons.items():
        if holds:
            raise FastprojError(f"the project's name {name!r} is {reason}: choose another, such as my-{package}")


def _suggestion(name: str) -> str:
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789")
    try:
        check(plain)
    except FastprojError:
        return ""
    return f"; {plain} would do"
