"""Checks that a project's name is safe as a folder and as a Python package, and shadows no dependency."""

import keyword
import re
import sys

from ..shared.answers import package_of
from ..shared.errors import UsageError

LONGEST = 60

# Device names of Windows, on which git cannot create a folder with such a name.
_DEVICES = {"con", "prn", "aux", "nul"} | {f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)}

# Import and distribution names of what rendered projects use: a package of that name would shadow it. With underscores.
_DEPENDENCIES = {
    "absl", "absl_py", "accelerate", "aiohappyeyeballs", "aiohttp", "aiosignal", "anyio", "ast_serialize",
    "async_timeout", "attr", "attrs", "certifi", "charset_normalizer", "click", "cloudpickle", "colorama", "conftest",
    "contourpy", "copier", "cuda", "cycler", "datasets", "dateutil", "docstring_parser", "fastproj", "fastproj_cli",
    "filelock", "flatbuffers", "fonttools", "frozenlist", "fsspec", "functorch", "google", "grpc", "grpcio", "h11",
    "hatchling", "hf_xet", "httpcore", "httpcore2", "httpx", "httpx2", "huggingface_hub", "idna", "importlib_resources",
    "iniconfig", "jinja2", "joblib", "jsonargparse", "kiwisolver", "librt", "lightning", "lightning_fabric",
    "lightning_utilities", "markdown", "markupsafe", "matplotlib", "ml_dtypes", "mlflow", "mpl_toolkits", "mpmath",
    "multidict", "mypy", "mypy_extensions", "narwhals", "networkx", "numpy", "nvidia", "onnx", "onnx_ir", "onnxruntime",
    "onnxscript", "packaging", "pandas", "pandas_stubs", "pathspec", "pil", "pillow", "pip", "pluggy", "polars",
    "polars_runtime_32", "propcache", "protobuf", "psutil", "py", "pyarrow", "pygments", "pylab", "pyparsing", "pytest",
    "pytest_timeout", "python_dateutil", "pytorch_lightning", "pytorch_optimizer", "pyyaml", "regex", "requests",
    "ruff", "safetensors", "scikit_learn", "scipy", "setuptools", "sitecustomize", "six", "sklearn", "sympy",
    "tensorboard", "tensorboard_data_server", "threadpoolctl", "tiktoken", "tiktoken_ext", "tokenizers", "tomli",
    "torch", "torchao", "torchaudio", "torchmetrics", "torchrun", "torchvision", "tqdm", "trackio", "transformers",
    "triton", "truststore", "types_pyyaml", "types_tqdm", "typeshed_client", "typing_extensions", "tzdata", "urllib3",
    "usercustomize", "wandb", "werkzeug", "wheel", "yaml", "yarl",
}  # fmt: skip

# Folders of a project, which Python would import instead of the package.
_FOLDERS = {"build", "configs", "dist", "docs", "launch", "runs", "src", "test", "tests", "tools"}


def check(name: str) -> None:
    """Check that a project may have this name; the error says why not, and suggests another one if it can."""
    if problem := _problem(name):
        plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789")
        suggestion = "" if _problem(plain) else f", for example {plain}"
        raise UsageError(f"the project's name {name[:LONGEST]!r} is {problem}{suggestion}")


def _problem(name: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", name) or len(name) > LONGEST:
        allowed = f"use at most {LONGEST} lowercase letters, digits, - and _"
        return f"not allowed: {allowed}, starting with a letter and ending with a letter or digit"
    package = package_of(name)
    reasons = {
        "a Python keyword": keyword.iskeyword(package) or keyword.issoftkeyword(package),
        "a module of Python's standard library": package in sys.stdlib_module_names,
        "a package that the project uses": package in _DEPENDENCIES,
        "a folder in the project": package in _FOLDERS,
        "a device name on Windows": package in _DEVICES,
    }
    return next((f"{it}: choose another, such as my-{package}" for it, applies in reasons.items() if applies), "")
