// SPDX-License-Identifier: Apache-2.0
// One place for the template tag and the hooks that pages use.
export { html, render } from "htm/preact";
export { Component } from "preact";
export { useEffect, useMemo, useRef, useState } from "preact/hooks";
