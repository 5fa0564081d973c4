// SPDX-License-Identifier: Apache-2.0
// One place for the template tag and the hooks that pages use.
export { html, render } from "htm/preact";
export { Component, createContext } from "preact";
export { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
