package workspace

// Store is what the service needs of the database for people, keys and sessions; internal/store implements it.
type Store interface {
	// the people helper lists the methods
}
