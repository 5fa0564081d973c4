// SPDX-License-Identifier: Apache-2.0
import { html } from "../lib/html.ts";
import { useStore } from "../lib/live.ts";
import { Page, Panel } from "../lib/ui.ts";
import { DecisionFeed } from "../parts/feed.ts";

export function Decisions() {
  const s = useStore(1000);
  return html`<${Page} title="Decisions" lead="Every request with where it went and why. Open one for all candidates and their cost in milliseconds.">
    <${Panel} title="As they end" cli="penstock explain --last --filter 'ttft>1s'"><${DecisionFeed} gateway=${s.live?.listen.http ?? ""} model=${s.live?.pools[0]?.models[0] ?? "MODEL"} most=${150} filters /><//>
  <//>`;
}
