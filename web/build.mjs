// SPDX-License-Identifier: Apache-2.0
// Builds the console into internal/console/ui/dist: one document, one script, one
// style sheet, and the what-if page as a single file that works offline.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, "..", "internal", "console", "ui", "dist");
const out = dist + ".new"; // swapped in when whole: a Go build may read the folder meanwhile

async function bundle(entry) {
  const r = await build({
    entryPoints: [join(here, entry)], bundle: true, minify: true, write: false, format: "esm", target: "es2022",
    outdir: out, legalComments: "none", logLevel: "warning",
  });
  const pick = (ext) => r.outputFiles.find((f) => f.path.endsWith(ext))?.text ?? "";
  return { js: pick(".js"), css: pick(".css") };
}

const hash = (text) => createHash("sha256").update(text).digest("hex").slice(0, 10);

rmSync(out, { recursive: true, force: true });
mkdirSync(join(out, "assets"), { recursive: true });
let total = 0;
function put(name, text) {
  const gz = gzipSync(text, { level: 9 });
  writeFileSync(join(out, name), text);
  writeFileSync(join(out, name + ".gz"), gz);
  total += gz.length;
}

const app = await bundle("src/main.ts");
const licenses = "/*! Bundles preact (MIT), htm (Apache-2.0) and uPlot (MIT). */\n";
const js = `app-${hash(app.js)}.js`, css = `app-${hash(app.css)}.css`;
put("assets/" + js, licenses + app.js);
put("assets/" + css, app.css);
const icon = readFileSync(join(here, "src", "favicon.svg"), "utf8");
put("favicon.svg", icon);
const page = readFileSync(join(here, "src", "index.html"), "utf8");
put("index.html", page.replace("{{css}}", "/assets/" + css).replace("{{js}}", "/assets/" + js));
console.log(`console: ${(total / 1024).toFixed(1)} KiB compressed at first load`);

const offline = await bundle("src/offline.ts");
const single = readFileSync(join(here, "src", "offline.html"), "utf8")
  .replace("{{icon}}", () => "data:image/svg+xml;base64," + Buffer.from(icon).toString("base64"))
  .replace("{{css}}", () => offline.css)
  .replace("{{js}}", () => licenses + offline.js.replaceAll("</script", "<\\/script"));
writeFileSync(join(out, "whatif.html"), single);
rmSync(dist, { recursive: true, force: true });
renameSync(out, dist);
