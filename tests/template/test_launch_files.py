"""The launch files of the engines, parsed: GPUs, nodes, precision and command are those of the answers."""

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
from matrix import COMPONENTS, ENGINE_MODEL, EVERY, FRAMEWORKS, QUESTIONS, TEMPLATE
from program import Fastproj, Project

FILES = {name: entry["file"] for name, entry in COMPONENTS.items() if entry.get("file", "").startswith("launch/")}
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
    return Launch("$(RUN_NAME)", trainer["numNodes"], gpus, str(trainer["numProcPerNode"]), after_torchrun(words))


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
    return Launch("$(RUN_NAME)", spec["completions"], gpus, values["PET_NPROC_PER_NODE"], after_torchrun(words))


def check_pod(pod: dict[str, Any], env: list[dict[str, Any]]) -> None:
    """Check what all pods have: time to save, a user, storage of the runs, the run's name from the job's."""
    timeout = next(int(it["value"]) for it in env if it["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    assert 30 < timeout < pod["terminationGracePeriodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    assert [it["mountPath"] for it in container["volumeMounts"]] == ["/app/runs", "/dev/shm"]  # noqa: S108
    assert [it["name"] for it in container["volumeMounts"]] == [it["name"] for it in pod["volumes"]]
    source = next(it for it in env if it["name"] == "RUN_NAME")["valueFrom"]["fieldRef"]["fieldPath"]
    assert source == "metadata.labels['jobset.sigs.k8s.io/jobset-name']"


def after_torchrun(words: list[str]) -> list[str]:
    assert all(isinstance(word, str) for word in words), "Kubernetes takes no numbers here"
    assert words[:2] == ["torchrun", "-m"]
    return words[2:]


PARSERS: dict[str, Callable[[dict[str, Any]], Launch]] = {"kubeflow": of_kubeflow, "jobset": of_jobset}


@pytest.fixture(scope="session")
def rendered(project: Project, fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Render a framework with each engine: without GPUs, or the shared rendering for two nodes."""

    @cache
    def render(framework: str, hardware: str) -> Path:
        if hardware == "nodes":
            return project(framework, ENGINE_MODEL, hardware)
        folder = tmp_path_factory.mktemp(framework)
        options = ["--model", ENGINE_MODEL, "--framework", framework, "--components", ",".join(FILES), "--no-git"]
        result = fastproj("new", "proj", *options, "--yes", "--output", str(folder))
        assert result.returncode == 0, result.stderr
        return folder / "proj"

    return render


def expected_command(framework: str, launch: Launch, nodes: int) -> list[str]:
    about = QUESTIONS["frameworks"]["default"][framework]
    values = {"$processes": launch.processes, "$nodes": str(nodes), "$name": launch.name}
    return ["proj.train", *(values.get(word, word) for word in shlex.split(f"{about['torchrun']} {about['named']}"))]


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
    assert launch.processes in (str(max(gpus, 1)), "$SKYPILOT_NUM_GPUS_PER_NODE", "$DSTACK_GPUS_PER_NODE")
    assert launch.command == expected_command(framework, launch, nodes), "so the precision is that of the config"
    config = yaml.safe_load((folder / "configs/default.yaml").read_text())
    if "speed" in config:
        assert config["speed"]["precision"] == precision
    else:
        assert config["trainer"]["precision"] == {"auto": "32-true", "bf16": "bf16-mixed"}[precision]
    lines = text.splitlines()
    assert len(lines) <= 80
    assert FILES[engine] in "".join(line for line in lines[:4] if line.startswith("#")), "the command that starts it"
    assert not os.access(folder / FILES[engine], os.X_OK)


def test_names_of_jobs_are_those_that_kubernetes_accepts(fastproj: Fastproj, tmp_path: Path) -> None:
    """JobSet adds up to 18 characters for the names of pods, which have at most 63."""
    project = "a_name-of_60_letters" + "x" * 19 + "_" + "x" * 20
    options = ["--model", ENGINE_MODEL, "--components", "kubeflow,jobset", "--no-git", "--yes"]
    assert fastproj("new", project, *options, "--output", str(tmp_path)).returncode == 0
    for engine in ("kubeflow", "jobset"):
        name = yaml.safe_load((tmp_path / project / FILES[engine]).read_text())["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,43}[a-z0-9])?", name)


CRDS = os.environ.get("FASTPROJ_CRDS")
"""A folder with the files of `CRD`; the page of each component says from which release."""
CRD = {"kubeflow": "trainer.kubeflow.org_trainjobs.yaml", "jobset": "jobset.x-k8s.io_jobsets.yaml"}


def forbid_unknown_keys(schema: Any) -> None:
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        forbid_unknown_keys(value)
    if isinstance(schema, dict) and "properties" in schema:
        schema.setdefault("additionalProperties", False)


@pytest.mark.slow
@pytest.mark.skipif(not CRDS, reason="set FASTPROJ_CRDS to a folder with the CRDs of Kubeflow Trainer and JobSet")
@pytest.mark.parametrize("engine", CRD)
def test_manifest_is_valid_for_the_schema_of_its_release(engine: str, rendered: Callable[..., Path]) -> None:
    definition = yaml.load((Path(CRDS or "") / CRD[engine]).read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    forbid_unknown_keys(schema)
    schema["properties"]["metadata"] = {"properties": {"name": {"type": "string"}}, "additionalProperties": False}
    validator = Draft202012Validator(schema)
    for framework in FRAMEWORKS:
        for hardware in ANSWERS:
            manifest = yaml.safe_load((rendered(framework, hardware) / FILES[engine]).read_text())
            assert manifest["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
            assert [error.message for error in validator.iter_errors(manifest)] == []
            manifest["spec"]["nonsense"] = 1
            assert not validator.is_valid(manifest)


def test_every_engine_is_parsed() -> None:
    assert {*PARSERS} == {*FILES}
    assert all((TEMPLATE / "components" / name / file.split("/")[-1]).is_file() for name, file in FILES.items())


class Pods:
    """The pods of a JobSet as processes of this machine: `$(NAME)` is replaced as Kubernetes does."""

    def __init__(self, folder: Path, manifest: dict[str, Any], place: Path) -> None:
        self.folder, self.place, self.name = folder, place, manifest["metadata"]["name"]
        (job,) = manifest["spec"]["replicatedJobs"]
        (self.container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        self.count = job["template"]["spec"]["completions"]

    def start(self) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free.getsockname()[1])}
        return [self._pod({"RUN_NAME": self.name, "PET_NODE_RANK": str(index)}, here) for index in range(self.count)]

    def _pod(self, fields: dict[str, str], here: dict[str, str]) -> subprocess.Popen[str]:
        values: dict[str, str] = {}
        for it in self.container["env"]:
            value = it["value"] if "value" in it else fields[it["name"]]
            values[it["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], value)
        values |= here
        words = [*self.container["command"], *self.container["args"]]
        words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in words]
        assert words.pop(0) == "torchrun"
        command = [sys.executable, "-m", "torch.distributed.run", *words, "--train.epochs", "200"]
        command += ["--run.device", "cpu", "--run.dir", str(self.place)]
        environment = {**os.environ, **values, "PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1"}
        output = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=output, text=True)


@pytest.mark.slow
@pytest.mark.skipif(not EVERY, reason="two pods train twice: set EVERY_TEST=1")
def test_pods_of_a_jobset_resume_after_one_was_killed(fastproj: Fastproj, tmp_path: Path) -> None:
    options = ["--model", ENGINE_MODEL, "--components", "jobset", "--gpus", "1", "--nodes", "2", "--tensor-cores=none"]
    assert fastproj("new", "proj", *options, "--no-git", "--yes", "--output", str(tmp_path)).returncode == 0
    manifest = yaml.safe_load((tmp_path / "proj/launch/jobset.yaml").read_text())
    whole, killed = (Pods(tmp_path / "proj", manifest, tmp_path / name) for name in ("whole", "killed"))
    assert [pod.wait() for pod in whole.start()] == [0, 0]
    first = killed.start()
    while not [*tmp_path.glob("killed/proj/checkpoints/step-*")]:
        assert first[0].poll() is None
        time.sleep(0.1)
    pid = first[1].pid
    os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]), signal.SIGKILL)
    assert 0 not in [pod.wait() for pod in first], "the other pod fails too"
    assert [pod.wait() for pod in killed.start()] == [0, 0]
    logs = [tmp_path / name / "proj/metrics.jsonl" for name in ("whole", "killed")]
    ends = [json.loads(log.read_text().splitlines()[-1]) for log in logs]
    assert ends[0]["split"] == "val"
    assert [ends[0][key] for key in ("step", "loss")] == [ends[1][key] for key in ("step", "loss")]
