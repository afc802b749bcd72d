// A server of Google Cloud Storage on loopback: fake-gcs-server, as the XML API that obstore speaks.
//
//	gcs-server -address 127.0.0.1:31901 -root DIRECTORY      each folder in it is a bucket; TOKEN=... is the login
//
// fake-gcs-server keeps the objects and decides about conditions. It takes uploads, and the condition "there is no such
// object yet", by the JSON API only, and it lists from the beginning only. So this program
//
//   - hands an upload of the XML API on as one of the JSON API, with its condition
//   - leaves out of a list what a client has already seen
//   - refuses requests with another login, and names a bucket that is missing, as Google's servers do
package main

import (
	"encoding/xml"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

type front struct {
	root   string
	login  string
	server http.Handler
}

func main() {
	address := flag.String("address", "127.0.0.1:31901", "host and port")
	root := flag.String("root", "", "directory of the buckets")
	flag.Parse()
	server, err := fakestorage.NewServerWithOptions(
		fakestorage.Options{NoListener: true, StorageRoot: *root, PublicHost: *address},
	)
	if err != nil {
		log.Fatal(err)
	}
	handler := front{*root, "Bearer " + os.Getenv("TOKEN"), server.HTTPHandler()}
	log.Fatal(http.ListenAndServe(*address, handler))
}

func (f front) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	bucket, object, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
	if request.Header.Get("Authorization") != f.login {
		refuse(answer, http.StatusUnauthorized, "AuthenticationRequired")
	} else if _, err := os.Stat(filepath.Join(f.root, bucket)); err != nil {
		refuse(answer, http.StatusNotFound, "NoSuchBucket")
	} else if request.Method == http.MethodPut {
		f.upload(answer, request, bucket, object)
	} else if request.URL.Query().Has("start-after") {
		f.listRest(answer, request)
	} else {
		f.server.ServeHTTP(answer, request)
	}
}

func (f front) upload(answer http.ResponseWriter, request *http.Request, bucket, object string) {
	query := url.Values{"uploadType": {"media"}, "name": {object}}
	if wanted := request.Header.Get("X-Goog-If-Generation-Match"); wanted != "" {
		query.Set("ifGenerationMatch", wanted)
	}
	handed := request.Clone(request.Context())
	handed.Method = http.MethodPost
	handed.URL = &url.URL{Path: "/upload/storage/v1/b/" + bucket + "/o", RawQuery: query.Encode()}
	found := httptest.NewRecorder()
	f.server.ServeHTTP(found, handed)
	if found.Code == http.StatusOK {
		answer.Header().Set("ETag", `"`+object+`"`)
	}
	answer.WriteHeader(found.Code)
}

func (f front) listRest(answer http.ResponseWriter, request *http.Request) {
	found := httptest.NewRecorder()
	f.server.ServeHTTP(found, request)
	var list fakestorage.ListBucketResult
	if err := xml.Unmarshal(found.Body.Bytes(), &list); found.Code != http.StatusOK || err != nil {
		answer.WriteHeader(http.StatusInternalServerError)
		return
	}
	after := request.URL.Query().Get("start-after")
	var rest []fakestorage.Contents
	for _, each := range list.Contents {
		if each.Key > after {
			rest = append(rest, each)
		}
	}
	list.Contents, list.KeyCount = rest, len(rest)
	encoded, _ := xml.Marshal(list)
	answer.Write([]byte(xml.Header + string(encoded)))
}

func refuse(answer http.ResponseWriter, status int, code string) {
	answer.Header().Set("Content-Type", "application/xml")
	answer.WriteHeader(status)
	fmt.Fprintf(answer, "<?xml version='1.0' encoding='UTF-8'?><Error><Code>%s</Code></Error>", code)
}
