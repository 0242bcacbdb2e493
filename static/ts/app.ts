// What every page loads. Pages work without it: everything here makes them quicker or livelier.
import "./htmx";
import "htmx-ext-sse";
import { startApprovals } from "./approvals";
import { startDialogs } from "./dialog";
import { startFiles } from "./files";
import { startLive } from "./live";
import { startPage } from "./page";
import { startSplit } from "./split";
import { startTerminals } from "./terminals";

startPage();
startDialogs();
startLive();
startSplit();
startFiles();
startTerminals();
const player = document.querySelector<HTMLElement>("[data-player]");
if (player) void import("./player").then((p) => p.play(player));
startApprovals();
