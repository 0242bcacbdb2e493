package approval_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/approval"
)

var (
	docPolicy = regexp.MustCompile("(?s)```json\n(.*?)```")
	docRow    = regexp.MustCompile("(?m)^\\| (?:(write|folder) )?(?:`(.+)`|(terminal)) \\| (allow|ask|deny) \\|")
)

// What docs/policies.md says of its examples is so.
func TestExamplesOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/policies.md")
	require.NoError(t, err)
	blocks := docPolicy.FindAllSubmatchIndex(text, -1)
	require.NotEmpty(t, blocks)
	tried := 0
	for i, at := range blocks {
		var p approval.Policy
		d := json.NewDecoder(strings.NewReader(string(text[at[2]:at[3]])))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&p))
		end := len(text)
		if i+1 < len(blocks) {
			end = blocks[i+1][0]
		}
		for _, row := range docRow.FindAllStringSubmatch(string(text[at[1]:end]), -1) {
			what := command(strings.ReplaceAll(row[2], `\|`, "|"))
			switch {
			case row[3] != "":
				what = approval.Action{Kind: approval.Terminal, Name: "terminal.open", Image: "base"}
			case row[1] != "":
				what = approval.Action{Kind: approval.Write, Name: "file.write", Image: "base", Paths: [][]byte{[]byte(row[2])}, Below: row[1] == "folder"}
			}
			who := auth.Actor{Name: "ci-agent", Owner: "ann@example.org"}
			got := approval.Decide([]approval.Named{{Policy: p, Of: "policy"}}, who, what)
			require.Equal(t, approval.Answer(row[4]), got.Answer, "%s: %s", row[0], got.Why)
			tried++
		}
	}
	require.Equal(t, strings.Count(string(text), "| allow |")+strings.Count(string(text), "| ask |")+strings.Count(string(text), "| deny |"), tried, "every row is tried")
}
