package views

import (
	"net/url"
	"strings"
)

// name is the label, or the id of a sandbox without one.
func (r SandboxRow) name() string {
	if r.Label != "" {
		return r.Label
	}
	return r.ID
}

// killURL gives the page that asks before killing, from the address of a sandbox's page.
func killURL(sandboxURL, id string) string {
	return strings.TrimSuffix(sandboxURL, id) + "kill?id=" + url.QueryEscape(id)
}
