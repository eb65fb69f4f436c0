// An HTTP service that reports its requests with OpenTelemetry's SDK for Go, as service.py does
// with that for Python.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

const name = "http.server.request.duration"

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	var aggregation sdk.Aggregation = sdk.AggregationExplicitBucketHistogram{
		Boundaries: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
	}
	if os.Args[1] == "exponential" {
		aggregation = sdk.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 20}
	}
	background := context.Background()
	exporter := must(otlpmetrichttp.New(background))
	provider := sdk.NewMeterProvider(
		sdk.WithReader(sdk.NewPeriodicReader(exporter)),
		sdk.WithView(sdk.NewView(sdk.Instrument{Name: name}, sdk.Stream{Aggregation: aggregation})),
	)
	duration := must(provider.Meter("service").Float64Histogram(name, metric.WithUnit("s")))
	var lock sync.Mutex
	taken := []float64{}
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		begun := time.Now()
		pause := must(strconv.Atoi(request.URL.Query().Get("ms")))
		time.Sleep(time.Duration(pause) * time.Millisecond)
		seconds := time.Since(begun).Seconds()
		lock.Lock()
		taken = append(taken, seconds)
		lock.Unlock()
		duration.Record(background, seconds, metric.WithAttributes(
			attribute.String("http.route", "/"), attribute.String("http.request.method", "GET")))
		answer.WriteHeader(http.StatusNoContent)
	})
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	go func() { _ = http.Serve(listener, nil) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Println(listener.Addr())
	<-stop
	if err := provider.ForceFlush(background); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	lock.Lock()
	fmt.Println(string(must(json.Marshal(taken))))
	_ = provider.Shutdown(background)
}
