package api

// Answers that have no home of their own.

// contentBody is a file read over JSON.
type contentBody struct {
	Path     string `json:"path"`
	PathB64  []byte `json:"path_b64,omitempty"`
	Content  string `json:"content"`
	Encoding string `json:"encoding" enum:"utf-8,base64"`
}

// writtenBody tells what was written over JSON.
type writtenBody struct {
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty"`
	Size    int    `json:"size"`
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
