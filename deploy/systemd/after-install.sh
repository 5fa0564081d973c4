#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs after the files are there: of a deb with "configure", of an rpm with the number
# of installed versions. A running service hands over to the new binary.
set -e
case "$1" in configure | [0-9]*) ;; *) exit 0 ;; esac
# Into another root folder, or without systemd, there is no service to tell.
[ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
if systemctl is-active --quiet penstock.service; then
  pid=$(systemctl show --property=MainPID --value penstock.service)
  if [ "${pid:-0}" -gt 1 ]; then
    kill -USR2 "$pid" || true
  fi
fi
