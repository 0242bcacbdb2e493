// htmx with what pages here need, set so that nothing in a page is ever run as a script.
import htmx from "htmx.org";

declare global {
	interface Window {
		htmx: typeof htmx;
	}
}

htmx.config.selfRequestsOnly = true;
htmx.config.allowEval = false;
htmx.config.allowScriptTags = false;
htmx.config.includeIndicatorStyles = false;
htmx.config.historyCacheSize = 0;
htmx.config.refreshOnHistoryMiss = true;
// A form with a mistake comes back as 422 and takes the form's place; any other error says itself where it is shown.
htmx.config.responseHandling = [
	{ code: "204", swap: false },
	{ code: "[23]..", swap: true },
	{ code: "422", swap: true },
	{ code: "[45]..", swap: true, error: true },
];

// The extensions look for it there.
window.htmx = htmx;

export default htmx;
