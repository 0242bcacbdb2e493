package auth

import (
	"net/mail"
	"strings"

	"sandgate/internal/fault"
)

// NormalEmail gives an address in lower case without surrounding blanks, or fault.Invalid. Only plain ASCII addresses are
// taken: look-alike letters in a name that decides who somebody is would be an invitation.
func NormalEmail(s string) (string, error) {
	s = strings.ToLower(strings.TrimSpace(s))
	bad := fault.Field("email", "This is not an e-mail address.")
	if len(s) < 3 || len(s) > 254 || strings.ContainsAny(s, " \"<>()[],;:\\") {
		return "", bad
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return "", bad
		}
	}
	a, err := mail.ParseAddress(s)
	if err != nil || a.Address != s {
		return "", bad
	}
	return s, nil
}
