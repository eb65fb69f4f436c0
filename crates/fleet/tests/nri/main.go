// The side of NRI that containerd and CRI-O have, from the library that they use, without
// containers: what happens to them is read from standard input, one JSON object a line, and each is
// answered by a line once every plug-in has answered. Plug-ins can connect after the event `listen`.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// A container, or what happens to it.
type container struct {
	Event string
	Pod   string
	ID    string
	Name  string
	Cpus  string
}

func (c *container) pod() *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox-" + c.Pod, Uid: c.Pod, Name: "web", Namespace: "shop"}
}

func (c *container) container() *api.Container {
	cpu := &api.LinuxCPU{Cpus: c.Cpus, Shares: api.UInt64(uint64(2))}
	return &api.Container{
		Id: c.ID, PodSandboxId: c.pod().Id, Name: c.Name,
		State: api.ContainerState_CONTAINER_RUNNING,
		Env:   []string{"A=B"}, Args: []string{"sleep"},
		Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Cpu: cpu}},
	}
}

var (
	lock    sync.Mutex
	running = map[string]*container{}
)

// Lists what runs, for a plug-in that has registered.
func list(ctx context.Context, synchronize adaptation.SyncCB) error {
	lock.Lock()
	defer lock.Unlock()
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, c := range running {
		pods = append(pods, c.pod())
		containers = append(containers, c.container())
	}
	_, err := synchronize(ctx, pods, containers)
	return err
}

func refuse(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return nil, fmt.Errorf("a plug-in that changes nothing has changed something")
}

func handle(runtime *adaptation.Adaptation, c *container) error {
	ctx := context.Background()
	pod, it := c.pod(), c.container()
	lock.Lock()
	switch c.Event {
	case "start", "update":
		running[c.ID] = c
	case "stop", "remove":
		delete(running, c.ID)
	}
	lock.Unlock()
	var err error
	switch c.Event {
	case "listen":
		err = runtime.Start()
	case "start":
		_, err = runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: it})
		if err == nil {
			err = runtime.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: it})
		}
	case "update":
		err = runtime.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: it})
	case "stop":
		_, err = runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: it})
	case "remove":
		err = runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: it})
	default:
		err = fmt.Errorf("unknown event %q", c.Event)
	}
	return err
}

func main() {
	socket, places := os.Args[1], os.Args[2]
	runtime, err := adaptation.New("containerd", "2.4.2", list, refuse,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(places), adaptation.WithPluginConfigPath(places))
	lines := bufio.NewScanner(os.Stdin)
	for err == nil && lines.Scan() {
		var c container
		if err = json.Unmarshal(lines.Bytes(), &c); err == nil {
			fmt.Println(handle(runtime, &c))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
