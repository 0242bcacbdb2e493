// Builds static/dist: one stylesheet, the scripts split into chunks, the icon sprite. Every name carries a hash of its content;
// manifest.json maps plain names to them. A .gz lies beside each file, so that the server compresses nothing while it serves.

import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = new URL("..", import.meta.url).pathname;
const dist = join(root, "static/dist");
// What pages may load before the terminal or an editor is opened, in bytes of gzip.
const scriptBudget = 150_000;

for (const name of readdirSync(dist)) {
	if (name !== ".keep") rmSync(join(dist, name), { recursive: true });
}

const manifest = {};

function put(name, content) {
	const hash = createHash("sha256").update(content).digest("hex").slice(0, 10);
	const hashed = name.replace(/(\.[a-z0-9]+)$/, `-${hash}$1`);
	writeFileSync(join(dist, hashed), content);
	manifest[name] = hashed;
}

function styles() {
	const bin = join(root, "node_modules/.bin/tailwindcss");
	const out = join(dist, "app.css");
	const run = spawnSync(bin, ["-i", "static/css/app.css", "-o", out, "--minify"], { cwd: root, encoding: "utf8" });
	if (run.status !== 0) throw new Error(`tailwindcss: ${run.stderr}`);
	const css = readFileSync(out);
	rmSync(out);
	put("app.css", css);
}

async function scripts() {
	const result = await build({
		absWorkingDir: root,
		entryPoints: { app: "static/ts/app.ts" },
		outdir: "static/dist",
		bundle: true,
		splitting: true,
		format: "esm",
		target: "es2022",
		minify: true,
		entryNames: "[name]-[hash]",
		chunkNames: "[name]-[hash]",
		assetNames: "[name]-[hash]",
		loader: { ".css": "empty" }, // xterm's own is part of app.css
		metafile: true,
		logLevel: "warning",
	});
	const outputs = result.metafile.outputs;
	for (const [file, info] of Object.entries(outputs)) {
		if (info.entryPoint === "static/ts/app.ts") manifest["app.js"] = file.slice("static/dist/".length);
	}
	let size = 0;
	for (const name of eager(outputs, manifest["app.js"])) size += gzipSync(readFileSync(join(dist, name))).length;
	if (size > scriptBudget) throw new Error(`scripts weigh ${size} bytes gzip, at most ${scriptBudget} are allowed`);
}

/** The files that an entry loads at once: itself and what it imports statically. */
function eager(outputs, entry, seen = new Set()) {
	if (seen.has(entry)) return seen;
	seen.add(entry);
	for (const i of outputs[`static/dist/${entry}`].imports) {
		if (i.kind === "import-statement") eager(outputs, i.path.slice("static/dist/".length), seen);
	}
	return seen;
}

function icons() {
	const names = readFileSync(join(root, "static/icons/names.txt"), "utf8").split("\n").filter(Boolean);
	const symbols = names.map((name) => {
		const svg = readFileSync(join(root, `node_modules/lucide-static/icons/${name}.svg`), "utf8");
		const inner = svg.slice(svg.indexOf(">", svg.indexOf("<svg")) + 1, svg.lastIndexOf("</svg>"));
		return `<symbol id="${name}" viewBox="0 0 24 24">${inner.replace(/\s+/g, " ").trim()}</symbol>`;
	});
	put("icons.svg", `<svg xmlns="http://www.w3.org/2000/svg">${symbols.join("")}</svg>`);
	put("favicon.svg", readFileSync(join(root, "static/icons/favicon.svg")));
}

if (!existsSync(join(root, "node_modules"))) throw new Error("run `npm ci` first");
styles();
await scripts();
icons();
for (const name of readdirSync(dist)) {
	if (name === ".keep") continue;
	writeFileSync(join(dist, `${name}.gz`), gzipSync(readFileSync(join(dist, name)), { level: 9 }));
}
writeFileSync(join(dist, "manifest.json"), `${JSON.stringify(manifest, null, "\t")}\n`);
