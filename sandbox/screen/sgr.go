package screen

import "strconv"

// mark notes whether what only the extended attributes say counts.
func (a *attr) mark() {
	a.flags &^= extended
	if a.style != 0 || a.link != 0 {
		a.flags |= extended
	}
}

// seen gives an attr that looks the same and holds nothing that does not count.
func (a attr) seen() attr {
	switch {
	case a.flags&extended == 0:
		a.link, a.style = 0, 0
		if a.flags&underline != 0 {
			a.style = 1
		}
	case a.style == 0 && a.flags&underline != 0:
		a.style = 1
	}
	a.flags &^= extended | underline
	return a
}

var sgrOn = map[int]uint16{1: bold, 2: dim, 3: italic, 5: blink, 7: inverse, 8: invisible, 9: strike, 53: overline}

var sgrOff = map[int]uint16{22: bold | dim, 23: italic, 25: blink, 27: inverse, 28: invisible, 29: strike, 55: overline}

// sgr changes a pen.
func (a *attr) sgr(p *params) {
	for i := 0; i < len(p.n); i++ {
		switch n := p.n[i]; {
		case n == 0:
			link := a.link
			*a = attr{link: link}
			a.mark()
		case n >= 30 && n <= 37:
			a.fg = colour16 | colour(n-30)
		case n >= 40 && n <= 47:
			a.bg = colour16 | colour(n-40)
		case n >= 90 && n <= 97:
			a.fg = colour16 | colour(n-90+8)
		case n >= 100 && n <= 107:
			a.bg = colour16 | colour(n-100+8)
		case n == 4:
			style := 1
			if len(p.sub[i]) > 0 {
				style = p.sub[i][0]
			}
			a.line(style)
		case n == 21:
			a.line(2)
		case n == 24:
			a.line(0)
		case n == 39:
			a.fg = 0
		case n == 49:
			a.bg = 0
		case n == 59:
			a.under = 0
			a.mark()
		case n == 38 || n == 48 || n == 58:
			i += a.extendedColour(p, i)
		case sgrOn[n] != 0:
			a.flags |= sgrOn[n]
		case sgrOff[n] != 0:
			a.flags &^= sgrOff[n]
		}
	}
}

func (a *attr) line(style int) {
	if style < 0 || style > 5 {
		style = 1
	}
	a.style = uint8(style)
	a.flags |= underline
	if style == 0 {
		a.flags &^= underline
	}
	a.mark()
}

// extendedColour reads 38;5;n, 38;2;r;g;b and both with colons, and says how many further parameters that took.
func (a *attr) extendedColour(p *params, at int) (used int) {
	v := [6]int{0, 0, -1, 0, 0, 0} // what, kind, colour space, three numbers
	space, i := 0, 0
	for {
		v[i+space] = p.n[at+i]
		if sub := p.sub[at+i]; len(sub) > 0 {
			for j := 0; j < len(sub); j++ {
				if v[1] == 5 {
					space = 1
				}
				if j+i+1+space >= len(v) {
					break
				}
				v[i+j+1+space] = sub[j]
			}
			break
		}
		if v[1] == 5 && i+space >= 2 || v[1] == 2 && i+space >= 5 {
			break
		}
		if v[1] != 0 {
			space = 1
		}
		i++
		if i+at >= len(p.n) || i+space >= len(v) {
			break
		}
	}
	field := map[int]*colour{38: &a.fg, 48: &a.bg, 58: &a.under}[v[0]]
	for k := 2; k < len(v); k++ {
		v[k] = max(v[k], 0)
	}
	switch v[1] {
	case 2:
		*field = colourRGB | colour(v[3]&255)<<16 | colour(v[4]&255)<<8 | colour(v[5]&255)
	case 5:
		*field = colour256 | colour(v[3]&255)
	}
	return i
}

// appendSGR appends the sequence that makes a fresh pen one that is seen as this. Links are not among it.
func (a *attr) appendSGR(out []byte) []byte {
	if a.flags&^protected == 0 && a.fg|a.bg|a.under == 0 && a.style == 0 {
		return a.protect(append(out, "\x1b[m"...))
	}
	out = append(out, "\x1b[0"...)
	for n := 1; n <= 53; n++ {
		if f := sgrOn[n]; f != 0 && a.flags&f != 0 {
			out = strconv.AppendInt(append(out, ';'), int64(n), 10)
		}
	}
	switch a.style {
	case 0:
	case 1:
		out = append(out, ";4"...)
	default:
		out = strconv.AppendInt(append(out, ";4:"...), int64(a.style), 10)
	}
	out = a.fg.append(out, 38)
	out = a.bg.append(out, 48)
	out = a.under.append(out, 58)
	return a.protect(append(out, 'm'))
}

// protect comes behind the reset that every style begins with, for that takes it away.
func (a *attr) protect(out []byte) []byte {
	if a.flags&protected != 0 {
		out = append(out, "\x1b[1\"q"...)
	}
	return out
}

func (c colour) append(out []byte, what int64) []byte {
	num := func(n colour) { out = strconv.AppendInt(append(out, ';'), int64(n), 10) }
	n := c & 0xffffff
	switch kind := c &^ 0xffffff; {
	case kind == 0:
	case kind == colour16 && what != 58:
		if n >= 8 {
			n += 60 - 8
		}
		num(colour(what) - 8 + n)
	case kind == colourRGB:
		num(colour(what))
		out = append(out, ";2"...)
		num(n >> 16)
		num(n >> 8 & 255)
		num(n & 255)
	default:
		num(colour(what))
		out = append(out, ";5"...)
		num(n)
	}
	return out
}
