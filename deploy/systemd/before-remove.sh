#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stops the service where the package goes for good ("remove" of a deb, 0 of an rpm);
# an upgrade leaves it alone.
set -e
case "$1" in remove | 0) ;; *) exit 0 ;; esac
[ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ] || exit 0
systemctl disable --now penstock.service || true
