// Decodes manifests strictly: each object against the Go types of its API, so that a misspelt or misplaced field is an error.
//
//	decode < MANIFESTS        prints KIND/NAME for each object; status 1 and one line at the first error
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	documents "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

var kinds = map[meta.TypeMeta]func() any{
	{APIVersion: "apps/v1", Kind: "StatefulSet"}:                     func() any { return &apps.StatefulSet{} },
	{APIVersion: "v1", Kind: "ConfigMap"}:                            func() any { return &core.ConfigMap{} },
	{APIVersion: "v1", Kind: "Service"}:                              func() any { return &core.Service{} },
	{APIVersion: "v1", Kind: "ServiceAccount"}:                       func() any { return &core.ServiceAccount{} },
	{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}:           func() any { return &policy.PodDisruptionBudget{} },
	{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}:      func() any { return &networking.NetworkPolicy{} },
	{APIVersion: "monitoring.coreos.com/v1", Kind: "ServiceMonitor"}: func() any { return &monitoring.ServiceMonitor{} },
	{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule"}: func() any { return &monitoring.PrometheusRule{} },
}

func decode(document []byte) error {
	var head struct {
		meta.TypeMeta
		Metadata struct{ Name string }
	}
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	if head.TypeMeta == (meta.TypeMeta{}) && len(bytes.TrimSpace(document)) == 0 {
		return nil
	}
	made, known := kinds[head.TypeMeta]
	if !known {
		return fmt.Errorf("%s %s is not known here", head.APIVersion, head.Kind)
	}
	if err := yaml.UnmarshalStrict(document, made()); err != nil {
		return fmt.Errorf("%s/%s: %w", head.Kind, head.Metadata.Name, err)
	}
	fmt.Printf("%s/%s\n", head.Kind, head.Metadata.Name)
	return nil
}

func main() {
	reader := documents.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = decode(document)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
