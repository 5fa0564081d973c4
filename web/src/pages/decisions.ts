// SPDX-License-Identifier: Apache-2.0
import { html } from "../lib/html.ts";
import { Page, Panel } from "../lib/ui.ts";
import { DecisionFeed } from "../parts/feed.ts";

export function Decisions() {
  return html`<${Page} title="Decisions" lead="Every request with where it went and why. Open one for all candidates and their cost in milliseconds.">
    <${Panel} title="As they end" cli="penstock explain --last --filter 'ttft>1s'"><${DecisionFeed} most=${150} filters /><//>
  <//>`;
}
