// The design tokens: colour by meaning, spacing, radius, type scale. Values live as CSS variables in static/css/tokens.css,
// one set per theme; here they get the names that templates and stylesheets use.
// Tailwind 4 reads this file through @config; it ignores `safelist` here (use @source inline in the stylesheet).
const color = (name) => `var(--${name})`;

/** @type {import('tailwindcss').Config} */
export default {
	content: ["./views/**/*.templ", "./static/ts/**/*.ts"],
	theme: {
		colors: {
			transparent: "transparent",
			current: "currentColor",
			canvas: color("canvas"),
			panel: color("panel"),
			sunk: color("sunk"),
			line: color("line"),
			ink: color("ink"),
			soft: color("soft"),
			faint: color("faint"),
			accent: color("accent"),
			"accent-ink": color("accent-ink"),
			"accent-wash": color("accent-wash"),
			ok: color("ok"),
			"ok-wash": color("ok-wash"),
			warn: color("warn"),
			"warn-wash": color("warn-wash"),
			bad: color("bad"),
			"bad-wash": color("bad-wash"),
			idle: color("idle"),
			"idle-wash": color("idle-wash"),
			term: color("term"),
		},
		fontFamily: { sans: ["var(--sans)"], mono: ["var(--mono)"] },
		fontSize: {
			xs: ["11px", "15px"],
			sm: ["12.5px", "18px"],
			base: ["14px", "20px"],
			lg: ["16px", "22px"],
			xl: ["19px", "25px"],
			"2xl": ["24px", "30px"],
		},
		borderRadius: { none: "0", sm: "4px", DEFAULT: "6px", lg: "8px", xl: "12px", full: "999px" },
	},
};
