"""The ways to start a cluster in examples/scale: the manifest has the fields that its resource has.

KubeRay's schema is not here: a third party's file of 1.2 MB. `RAY_JOB` has what the manifest uses of it, with the types
of `ray.io_rayjobs.yaml` and of the Go types that it is made from, as read in the operator's repository (v1). The pod
templates were checked once with the package kubernetes-validate (1.31, strict). The script for Slurm is run by
tests/engines/test_slurm_engine.py.
"""

import shlex
import subprocess
from typing import Any

import yaml
from tests.docs_kit import ROOT

FOLDER = ROOT / "examples" / "scale"

TEMPLATE = {"spec": dict}
GROUP = {"rayStartParams": dict[str, str], "template": TEMPLATE}
RAY_JOB: dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "backoffLimit": int,
        "shutdownAfterJobFinishes": bool,
        "ttlSecondsAfterFinished": int,
        "rayClusterSpec": {
            "rayVersion": str,
            "headGroupSpec": GROUP,
            "workerGroupSpecs": [
                {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, **GROUP},
            ],
        },
    },
}
"""Fields by name. All of them are required of our manifest; there may be no other."""


def check(value: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, dict):
        assert isinstance(value, dict), where
        assert set(value) == set(wanted), where
        for name, inner in wanted.items():
            check(value[name], inner, f"{where}.{name}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), where
        for number, each in enumerate(value):
            check(each, wanted[0], f"{where}[{number}]")
    elif wanted == dict[str, str]:
        assert isinstance(value, dict) and all(isinstance(each, str) for each in value.values()), where
    else:
        assert type(value) is wanted, where


def read_manifest() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "rayjob.yaml").read_text())


def list_containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def test_the_manifest_has_the_fields_of_a_ray_job():
    manifest = read_manifest()
    check(manifest, RAY_JOB, "manifest")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")


def test_keys_are_only_in_the_pod_of_the_driver():
    """The driver hands them to the workers."""
    head, *workers = list_containers(read_manifest())
    assert "envFrom" in head
    assert not any("env" in worker or "envFrom" in worker for worker in workers)


def test_all_pods_have_one_image():
    assert len({container["image"] for container in list_containers(read_manifest())}) == 1


def test_a_lost_head_resumes_the_run():
    """The operator starts the same command again in a new cluster: it goes on, on a volume that outlives the head."""
    manifest = read_manifest()
    words = shlex.split(manifest["spec"]["entrypoint"])
    head = list_containers(manifest)[0]
    (mount,) = [mount["mountPath"] for mount in head["volumeMounts"]]
    assert manifest["spec"]["backoffLimit"] > 0
    assert "--resume" in words
    assert words[words.index("--out") + 1].startswith(f"{mount}/")


def test_the_script_is_valid_bash():
    subprocess.run(["bash", "-n", FOLDER / "slurm.sh"], check=True)
