// The line between files and terminal: dragged, moved by arrow keys, remembered in this browser.
import { find } from "./dom";

const key = "sandgate.files-width";
const least = 160;

function set(width: number): void {
	const most = Math.max(least, innerWidth * 0.5);
	const w = Math.round(Math.min(most, Math.max(least, width)));
	find("[data-split]")?.style.setProperty("--files-w", `${w}px`);
	find("[data-grip]")?.setAttribute("aria-valuenow", String(w));
	try {
		localStorage.setItem(key, String(w));
	} catch {
		// not remembered
	}
}

export function startSplit(): void {
	const grip = find("[data-grip]");
	const files = find("#files");
	if (!grip || !files) return;
	let kept = "";
	try {
		kept = localStorage.getItem(key) ?? "";
	} catch {
		// nothing is remembered
	}
	if (Number(kept) >= least) set(Number(kept));
	grip.addEventListener("pointerdown", (event) => {
		event.preventDefault();
		grip.setPointerCapture(event.pointerId);
		grip.classList.add("on");
		const left = files.getBoundingClientRect().left;
		const move = (e: PointerEvent) => set(e.clientX - left);
		const up = () => {
			grip.classList.remove("on");
			grip.removeEventListener("pointermove", move);
		};
		grip.addEventListener("pointermove", move);
		grip.addEventListener("lostpointercapture", up, { once: true });
	});
	grip.addEventListener("keydown", (event) => {
		const by = { ArrowLeft: -20, ArrowRight: 20 }[event.key];
		if (by === undefined) return;
		event.preventDefault();
		set(files.getBoundingClientRect().width + by);
	});
}
