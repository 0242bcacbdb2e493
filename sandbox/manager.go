package sandbox

// Manager supervises every sandbox of one data directory.
type Manager struct{}
