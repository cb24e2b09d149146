package index

// WithStep makes commits so small that every long one is made in steps of
// about n records.
func (c Config) WithStep(n int) Config {
	c.step = n
	return c
}
