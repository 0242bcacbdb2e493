package api

// Answers that have no home of their own.

// executionBody and logsBody are what their callers read; the texts are written beside the rest, because they may be long.
type executionBody struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	execution
}

type logsBody struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	StdoutB64 []byte `json:"stdout_b64,omitempty" doc:"The bytes, where they are not UTF-8."`
	StderrB64 []byte `json:"stderr_b64,omitempty"`
	logsEnd
}

// contentHead is a file read over JSON without its content, which is written beside it.
type contentHead struct {
	Path     string `json:"path"`
	PathB64  []byte `json:"path_b64,omitempty"`
	Encoding string `json:"encoding" enum:"utf-8,base64"`
}

// contentBody is a file read over JSON.
type contentBody struct {
	contentHead
	Content string `json:"content"`
}

// writtenBody tells what was written over JSON.
type writtenBody struct {
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty"`
	Size    int64  `json:"size"`
}

// listingBody is a page of a directory.
type listingBody struct {
	Entries []entryBody `json:"entries"`
	Cursor  *string     `json:"cursor" doc:"Asks for the next page; null on the last."`
	Total   int         `json:"total"`
}

// doneBody is the answer to a change that has nothing else to tell.
type doneBody struct {
	Success bool `json:"success"`
}

// errorBody is every error answer, as far as all have it in common; writeError adds what a code brings with it.
type errorBody struct {
	Detail string            `json:"detail" doc:"A sentence for people."`
	Code   string            `json:"code" doc:"A word for programs."`
	Fields map[string]string `json:"fields,omitempty" doc:"With the code invalid: what is wrong with which field."`
}
