"""The launch files of the engines have the answers: GPUs, nodes, precision and command."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from matrix import COMPONENTS, ENGINE_MODEL, FRAMEWORKS, QUESTIONS, TEMPLATE
from program import LIMIT_S, Fastproj, Project, end, finish, run_in

FILES = {
    name: entry["file"]
    for name, entry in COMPONENTS.items()
    if entry.get("file", "").startswith("launch/")
}
"""The file of each engine."""
ANSWERS = {"cpu": (0, 1, "auto"), "nodes": (8, 2, "bf16")}
"""GPUs, nodes and precision of the hardware that is rendered."""


@dataclass
class Launch:
    """What a launch file asks for."""

    name: str
    """Name of the run, as the command contains it."""
    nodes: int
    gpus: int
    processes: str
    """Processes per node: a number, or the expression that the engine replaces."""
    command: list[str]
    """The words after `torchrun -m`."""


def of_kubeflow(manifest: dict[str, Any]) -> Launch:
    trainer = manifest["spec"]["trainer"]
    assert not [it["name"] for it in trainer["env"] if it["name"].startswith("PET_")], "reserved"
    (patch,) = manifest["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    check_pod(job["template"]["spec"]["template"]["spec"], trainer["env"])
    gpus = int(trainer["resourcesPerNode"].get("limits", {}).get("nvidia.com/gpu", 0))
    words = [*trainer["command"], *trainer["args"]]
    return Launch(
        "$(RUN_NAME)",
        trainer["numNodes"],
        gpus,
        str(trainer["numProcPerNode"]),
        after_torchrun(words),
    )


def of_jobset(manifest: dict[str, Any]) -> Launch:
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 3
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    check_pod(spec["template"]["spec"], container["env"])
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    values = {it["name"]: it.get("value") for it in container["env"]}
    assert values["PET_MASTER_ADDR"] == f"$(RUN_NAME)-{job['name']}-0-0.$(RUN_NAME)"
    assert values["PET_MASTER_PORT"] == str(container["ports"][0]["containerPort"])
    assert int(values["PET_NNODES"]) == spec["completions"] == spec["parallelism"]
    gpus = int(container["resources"].get("limits", {}).get("nvidia.com/gpu", 0))
    words = [*container["command"], *container["args"]]
    return Launch(
        "$(RUN_NAME)",
        spec["completions"],
        gpus,
        values["PET_NPROC_PER_NODE"],
        after_torchrun(words),
    )


def check_pod(pod: dict[str, Any], env: list[dict[str, Any]]) -> None:
    """Check what all pods have: time to save, a user, storage of the runs, the run's name."""
    timeout = next(int(it["value"]) for it in env if it["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    assert 30 < timeout < pod["terminationGracePeriodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    places = [it["mountPath"] for it in container["volumeMounts"]]
    assert places == ["/app/runs", "/dev/shm"]  # noqa: S108
    assert [it["name"] for it in container["volumeMounts"]] == [it["name"] for it in pod["volumes"]]
    source = next(it for it in env if it["name"] == "RUN_NAME")["valueFrom"]["fieldRef"][
        "fieldPath"
    ]
    assert source == "metadata.labels['jobset.sigs.k8s.io/jobset-name']"


def after_torchrun(words: list[str]) -> list[str]:
    assert all(isinstance(word, str) for word in words), "Kubernetes takes no numbers here"
    assert words[:2] == ["torchrun", "-m"]
    return words[2:]


def of_skypilot(task: dict[str, Any]) -> Launch:
    assert task["resources"]["job_recovery"]["max_restarts_on_errors"] == 3
    assert task["file_mounts"]["/runs"]["mode"] == "MOUNT_CACHED"
    gpus = int(task["resources"].get("accelerators", "none:0").split(":")[1])
    options, command = of_shell(task["run"])
    check_torchrun(options, task["run"])
    assert "RUN_NAME" in task["envs"]
    assert options["--nnodes"] == "$SKYPILOT_NUM_NODES"
    return Launch("$RUN_NAME", task["num_nodes"], gpus, options["--nproc-per-node"], command)


def of_dstack(task: dict[str, Any]) -> Launch:
    gpu = task["resources"]["gpu"]
    gpus = int(str(gpu).split(":")[-1])
    options, command = of_shell(task["commands"][-1])
    check_torchrun(options, "\n".join(task["env"]))
    assert options["--nnodes"] == "$DSTACK_NODES_NUM"
    assert "error" not in task["retry"]["on_events"], "which would have no bound"
    return Launch("$DSTACK_RUN_NAME", task["nodes"], gpus, options["--nproc-per-node"], command)


def of_shell(script: str) -> tuple[dict[str, str], list[str]]:
    """Return torchrun's options, and the words after its `-m`."""
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    words = words[words.index("torch.distributed.run") + 1 :]
    end = words.index("-m")
    return dict(
        zip(
            words[:end:2],
            words[1:end:2],
            strict=True,
        )
    ), words[end + 1 :]


def check_torchrun(options: dict[str, str], environment: str) -> None:
    assert (options["--max-restarts"], options["--rdzv-backend"]) == ("3", "c10d")
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in environment
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90" in environment


PARSERS: dict[str, Callable[[dict[str, Any]], Launch]] = {
    "kubeflow": of_kubeflow,
    "jobset": of_jobset,
    "skypilot": of_skypilot,
    "dstack": of_dstack,
}


@pytest.fixture(scope="session")
def rendered(
    project: Project, fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Render a framework with each engine: without GPUs, or the shared rendering for two nodes."""

    @cache
    def render(framework: str, hardware: str) -> Path:
        if hardware == "nodes":
            return project(framework, ENGINE_MODEL, hardware)
        folder = tmp_path_factory.mktemp(framework)
        options = [
            "--model",
            ENGINE_MODEL,
            "--framework",
            framework,
            "--components",
            ",".join(FILES),
            "--no-git",
        ]
        fastproj("new", "proj", *options, "--yes", "--output", str(folder))
        return folder / "proj"

    return render


def expected_command(
    framework: str,
    launch: Launch,
    nodes: int,
) -> list[str]:
    about = QUESTIONS["frameworks"]["default"][framework]
    values = {
        "$processes": launch.processes,
        "$nodes": str(nodes),
        "$name": launch.name,
    }
    return [
        "proj.train",
        *(values.get(word, word) for word in shlex.split(f"{about['torchrun']} {about['named']}")),
    ]


@pytest.mark.parametrize("hardware", ANSWERS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("engine", FILES)
def test_answers_reach_the_launch_file(
    engine: str, framework: str, hardware: str, rendered: Callable[..., Path]
) -> None:
    folder = rendered(framework, hardware)
    gpus, nodes, precision = ANSWERS[hardware]
    text = (folder / FILES[engine]).read_text()
    launch = PARSERS[engine](yaml.safe_load(text))
    assert (launch.nodes, launch.gpus) == (nodes, gpus)
    from_the_engine = (
        {"skypilot": "$SKYPILOT_NUM_GPUS_PER_NODE", "dstack": "$DSTACK_GPUS_PER_NODE"}
        if gpus
        else {}
    )
    assert launch.processes == from_the_engine.get(engine, str(max(gpus, 1)))
    assert launch.command == expected_command(framework, launch, nodes), (
        "so the precision is that of the config"
    )
    config = yaml.safe_load((folder / "configs/default.yaml").read_text())
    if framework == "lightning":
        expected = {"auto": "32-true", "bf16": "bf16-mixed"}[precision]
        assert config["trainer"]["precision"] == expected
    elif framework == "accelerate":
        launched = yaml.safe_load((folder / "configs/accelerate.yaml").read_text())
        assert launched["mixed_precision"] == {"auto": "no"}.get(precision, precision)
    else:
        assert config.get("speed", {}).get("precision", "auto") == precision
    lines = text.splitlines()
    assert len(lines) <= 80
    assert FILES[engine] in "".join(line for line in lines[:4] if line.startswith("#")), (
        "the command that starts it"
    )
    assert not os.access(folder / FILES[engine], os.X_OK)


NAMES = {
    "kubeflow": r"[a-z]([a-z0-9-]{0,43}[a-z0-9])?",
    "jobset": r"[a-z]([a-z0-9-]{0,43}[a-z0-9])?",
    "skypilot": r"[a-z0-9]+(--?[a-z0-9]+)*",
    "dstack": r"[a-z][a-z0-9-]{1,40}",
}
"""What each engine accepts as a name. JobSet adds up to 18 characters for pods, which have 63."""


@pytest.mark.parametrize("project", ["x", "on", f"of_60__letters-_-{'x' * 22}_{'x' * 20}"])
def test_names_are_those_that_each_engine_accepts(
    project: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    """YAML reads `on` as true."""
    components = ",".join(["docker", *FILES])
    options = ["--model", ENGINE_MODEL, "--components", components, "--no-git", "--yes"]
    fastproj("new", project, *options, "--output", str(tmp_path))
    texts = {engine: (tmp_path / project / file).read_text() for engine, file in FILES.items()}
    for engine, text in texts.items():
        task = yaml.safe_load(text)
        assert re.fullmatch(NAMES[engine], task.get("metadata", task)["name"])
    (image,) = set(re.findall(r"image: (\S+):latest", "".join(texts.values())))
    assert re.fullmatch(r"[a-z0-9]+((_|__|-+)[a-z0-9]+)*", image), "what Docker accepts"
    assert f"docker build --tag {image} ." in (tmp_path / project / "Dockerfile").read_text()


CRDS = os.environ.get("FASTPROJ_CRDS")
"""A folder with the files of `CRD`."""
CRD = {"kubeflow": "trainer.kubeflow.org_trainjobs.yaml", "jobset": "jobset.x-k8s.io_jobsets.yaml"}


def forbid_unknown_keys(schema: Any) -> None:
    for value in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        forbid_unknown_keys(value)
    if isinstance(schema, dict) and "properties" in schema:
        schema.setdefault("additionalProperties", False)


@pytest.mark.slow
@pytest.mark.skipif(
    not CRDS,
    reason="needs FASTPROJ_CRDS, by tests/support/programs/install_checkers.sh: make test",
)
@pytest.mark.parametrize("engine", CRD)
def test_manifest_is_valid_for_the_schema_of_its_release(
    engine: str, rendered: Callable[..., Path]
) -> None:
    definition = yaml.load((Path(CRDS or "") / CRD[engine]).read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    forbid_unknown_keys(schema)
    schema["properties"]["metadata"] = {
        "properties": {"name": {"type": "string"}},
        "additionalProperties": False,
    }
    validator = Draft202012Validator(schema)
    for framework in FRAMEWORKS:
        for hardware in ANSWERS:
            manifest = yaml.safe_load((rendered(framework, hardware) / FILES[engine]).read_text())
            assert manifest["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
            assert [error.message for error in validator.iter_errors(manifest)] == []
            manifest["spec"]["nonsense"] = 1
            assert not validator.is_valid(manifest)


OF_PACKAGES = {
    "skypilot": "import sys, sky; sky.Task.from_yaml(sys.argv[1])",
    "dstack": "import sys, yaml; "
    "from dstack._internal.core.models.configurations import parse_apply_configuration; "
    "parse_apply_configuration(yaml.safe_load(open(sys.argv[1])))",
}
"""What validates a file with the package itself, in an environment that has it."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", OF_PACKAGES)
def test_task_is_valid_for_its_package(
    engine: str, rendered: Callable[..., Path], tmp_path: Path
) -> None:
    variable = f"FASTPROJ_{engine.upper()}_PYTHON"
    python = os.environ.get(variable) or pytest.skip(
        f"needs {variable}, by tests/support/programs/install_checkers.sh: make test"
    )
    for framework in FRAMEWORKS:
        for hardware in ANSWERS:
            file = rendered(framework, hardware) / FILES[engine]
            run_in(tmp_path, python, "-c", OF_PACKAGES[engine], str(file))
    wrong = tmp_path / file.name
    wrong.write_text(file.read_text() + "\nnonsense: 1\n")
    done = run_in(
        tmp_path,
        python,
        "-c",
        OF_PACKAGES[engine],
        str(wrong),
        status=None,
    )
    assert done.returncode != 0


def nodes_of(
    engine: str,
    folder: Path,
    runs: Path,
) -> list[subprocess.Popen[str]]:
    """Start both machines of a task as shells of this one, without what installs the project."""
    task = yaml.safe_load((folder / FILES[engine]).read_text())
    script = task["run"] if engine == "skypilot" else "\n".join(task["commands"])
    script = re.sub(r"^uv pip.*\n", "", script, flags=re.MULTILINE).replace("/runs", str(runs))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script = (
            script.replace(":29400", f":{free.getsockname()[1]}").rstrip()
            + " --run.device cpu --train.steps 60"
        )
    settings = {
        "RUN_NAME": "first",
        "DSTACK_RUN_NAME": "first",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    settings |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "1"}
    settings |= {
        "DSTACK_NODES_NUM": "2",
        "DSTACK_GPUS_PER_NODE": "1",
        "DSTACK_MASTER_NODE_IP": "127.0.0.1",
    }
    settings |= dict.fromkeys(("SKYPILOT_NODE_IPS", "DSTACK_NODES_IPS"), "127.0.0.1\n127.0.0.1")
    settings |= {
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    settings |= dict(it.split("=") for it in task.get("env", []))
    ranks = [
        {"SKYPILOT_NODE_RANK": str(rank), "DSTACK_NODE_RANK": str(rank)}
        for rank in range(task.get("nodes", 2))
    ]
    shell = ["bash", "-ec", script]
    environments = [os.environ | settings | it for it in ranks]
    return [
        subprocess.Popen(shell, cwd=folder, env=it, stderr=subprocess.PIPE, text=True)
        for it in environments
    ]


@pytest.mark.slow
@pytest.mark.test_all
@pytest.mark.parametrize("engine", OF_PACKAGES)
def test_machines_of_a_task_train_together(engine: str, fastproj: Fastproj, tmp_path: Path) -> None:
    options = [
        "--model",
        ENGINE_MODEL,
        "--components",
        engine,
        "--gpus",
        "1",
        "--nodes",
        "2",
        "--tensor-cores=none",
    ]
    fastproj(
        "new",
        "proj",
        *options,
        "--no-git",
        "--yes",
        "--output",
        str(tmp_path),
    )
    folder = tmp_path / "proj"
    runs = tmp_path / "shared"
    runs.mkdir()
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / ".venv/bin/python").chmod(0o755)
    machines = nodes_of(engine, folder, runs)
    try:
        errors = [finish(machine)[1] for machine in machines]
    finally:
        for machine in machines:
            end(machine)
    assert [machine.returncode for machine in machines] == [0, 0], "\n".join(errors)
    assert json.loads((runs / "first/metrics.jsonl").read_text().splitlines()[-1])["step"] == 60


def test_every_engine_is_parsed() -> None:
    assert {*PARSERS} == {*FILES}
    assert all(
        (TEMPLATE / "components" / name / file.split("/")[-1]).is_file()
        for name, file in FILES.items()
    )


class Pods:
    """The pods of a JobSet as processes of this machine.

    `$(NAME)` is replaced as Kubernetes does.
    """

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        place: Path,
    ) -> None:
        self.folder = folder
        self.place = place
        self.name = manifest["metadata"]["name"]
        (job,) = manifest["spec"]["replicatedJobs"]
        (self.container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        self.count = job["template"]["spec"]["completions"]

    def start(self) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free.getsockname()[1])}
        return [
            self._pod({"RUN_NAME": self.name, "PET_NODE_RANK": str(index)}, here)
            for index in range(self.count)
        ]

    def _pod(
        self,
        fields: dict[str, str],
        here: dict[str, str],
    ) -> subprocess.Popen[str]:
        values: dict[str, str] = {}
        for it in self.container["env"]:
            value = it["value"] if "value" in it else fields[it["name"]]
            values[it["name"]] = re.sub(
                r"\$\((\w+)\)",
                lambda found: values[found[1]],
                value,
            )
        values |= here
        words = [*self.container["command"], *self.container["args"]]
        words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in words]
        assert words.pop(0) == "torchrun"
        command = [sys.executable, "-m", "torch.distributed.run", *words, "--train.epochs", "200"]
        command += ["--run.device", "cpu", "--run.dir", str(self.place)]
        environment = {
            **os.environ,
            **values,
            "PYTHONPATH": str(self.folder / "src"),
            "OMP_NUM_THREADS": "1",
        }
        output = subprocess.DEVNULL
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=output, stderr=output, text=True
        )


def statuses(pods: list[subprocess.Popen[str]]) -> list[int]:
    """Wait for the pods, and return their exit statuses; end those that hang."""
    try:
        return [pod.wait(LIMIT_S) for pod in pods]
    finally:
        for pod in pods:
            end(pod)


@pytest.mark.slow
@pytest.mark.test_all
def test_pods_of_a_jobset_resume_after_one_was_killed(fastproj: Fastproj, tmp_path: Path) -> None:
    options = [
        "--model",
        ENGINE_MODEL,
        "--components",
        "jobset",
        "--gpus",
        "1",
        "--nodes",
        "2",
        "--tensor-cores=none",
    ]
    fastproj(
        "new",
        "proj",
        *options,
        "--no-git",
        "--yes",
        "--output",
        str(tmp_path),
    )
    manifest = yaml.safe_load((tmp_path / "proj/launch/jobset.yaml").read_text())
    whole, killed = (
        Pods(tmp_path / "proj", manifest, tmp_path / name) for name in ("whole", "killed")
    )
    assert statuses(whole.start()) == [0, 0]
    first = killed.start()
    while not [*tmp_path.glob("killed/proj/checkpoints/step-*")]:
        assert first[0].poll() is None
        time.sleep(0.1)
    pid = first[1].pid
    os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]), signal.SIGKILL)
    assert 0 not in statuses(first), "the other pod fails too"
    assert statuses(killed.start()) == [0, 0]
    logs = [tmp_path / name / "proj/metrics.jsonl" for name in ("whole", "killed")]
    ends = [json.loads(log.read_text().splitlines()[-1]) for log in logs]
    assert ends[0]["split"] == "val"
    assert [ends[0][key] for key in ("step", "loss")] == [ends[1][key] for key in ("step", "loss")]
