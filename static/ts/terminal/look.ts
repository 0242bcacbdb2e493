// How the terminal looks: colours from the page's tokens, what is remembered of size and reading aid.
import type { ITheme } from "@xterm/xterm";

const onDark: ITheme = {
	black: "#2b2f38",
	red: "#ff7b72",
	green: "#8fd19e",
	yellow: "#e8b94a",
	blue: "#7fb0ff",
	magenta: "#d2a8ff",
	cyan: "#76d9e6",
	white: "#c9ced8",
	brightBlack: "#8b93a3",
	brightRed: "#ffa198",
	brightGreen: "#b0e5bb",
	brightYellow: "#f2d27e",
	brightBlue: "#a9c9ff",
	brightMagenta: "#e2c5ff",
	brightCyan: "#a5e9f1",
	brightWhite: "#ffffff",
	selectionBackground: "#3d5a8a99",
};

const onLight: ITheme = {
	black: "#1d1b18",
	red: "#b3261e",
	green: "#1a6b43",
	yellow: "#7d5400",
	blue: "#2f4fc0",
	magenta: "#7c3aa8",
	cyan: "#0f6b78",
	white: "#6b655b",
	brightBlack: "#5d574d",
	brightRed: "#c9382f",
	brightGreen: "#22804f",
	brightYellow: "#946400",
	brightBlue: "#3f63e0",
	brightMagenta: "#9149c2",
	brightCyan: "#14808f",
	brightWhite: "#1d1b18",
	selectionBackground: "#9db8e899",
};

/** Brightness of "#rrggbb" from 0 to 1; 0 for anything else, because the terminal is dark unless told otherwise. */
function brightness(color: string): number {
	const m = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(color);
	if (m === null) return 0;
	const part = (i: number): number => Number.parseInt(m[i] ?? "0", 16) / 255;
	return 0.2126 * part(1) + 0.7152 * part(2) + 0.0722 * part(3);
}

/** The theme by --term and --term-ink as they are at the terminal, whatever light or dark makes of them. */
export function theme(at: Element): ITheme {
	const style = getComputedStyle(at);
	const token = (name: string, otherwise: string): string => style.getPropertyValue(name).trim() || otherwise;
	const background = token("--term", "#16181d");
	const foreground = token("--term-ink", "#d7dae0");
	return {
		...(brightness(background) > 0.5 ? onLight : onDark),
		background,
		foreground,
		cursor: foreground,
		cursorAccent: background,
	};
}

/** Calls back when the person or the machine changes between light and dark. */
export function onThemeChange(change: () => void, signal: AbortSignal): void {
	const seen = new MutationObserver(change);
	seen.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class", "style"] });
	signal.addEventListener("abort", () => seen.disconnect());
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", change, { signal });
}

/** What a browser that forbids storage remembers until the page is left. */
const forgetful = new Map<string, string>();

/** What is remembered in this browser. */
export const memory = {
	get(name: string): string {
		try {
			return localStorage.getItem(`sandgate.terminal.${name}`) ?? forgetful.get(name) ?? "";
		} catch {
			return forgetful.get(name) ?? "";
		}
	},
	set(name: string, value: string): void {
		try {
			localStorage.setItem(`sandgate.terminal.${name}`, value);
		} catch {
			forgetful.set(name, value);
		}
	},
};

const changed = "sandgate:terminal-look";

/** Tells all terminals, here and in other windows, that something remembered about their looks has changed. */
export function lookChanged(): void {
	window.dispatchEvent(new Event(changed));
}

/** Calls back when something remembered has changed, here or in another window. */
export function onLookChange(change: () => void, signal: AbortSignal): void {
	window.addEventListener(changed, change, { signal });
	window.addEventListener("storage", (e) => e.key?.startsWith("sandgate.terminal.") === true && change(), { signal });
}

export function fontSize(): number {
	const n = Number.parseInt(memory.get("font"), 10);
	return n >= 8 && n <= 32 ? n : 13;
}
