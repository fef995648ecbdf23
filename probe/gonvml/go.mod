module github.com/geforce-p2p/geforce-p2p/probe/gonvml

go 1.25.0

require (
	github.com/NVIDIA/go-nvml v0.13.4-1
	github.com/geforce-p2p/geforce-p2p v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.43.0 // indirect
)

replace github.com/geforce-p2p/geforce-p2p => ../..
