#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
set -e
[ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
