#!/bin/sh
# Installs SLURM on Debian or Ubuntu, for tests/template/test_slurm.py, which starts a cluster of its own.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends slurm-wlm munge slurm-client
