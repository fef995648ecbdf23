module example.com/service

go 1.25.0

require github.com/geforce-p2p/geforce-p2p v0.0.0

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	golang.org/x/sys v0.43.0 // indirect
)

replace github.com/geforce-p2p/geforce-p2p => ../..
