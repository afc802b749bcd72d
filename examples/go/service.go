// A service: publishes orders with confirms, and consumes them with acks, over RabbitMQ's own client for Go.
//
//	go run . publish 5 amqp://guest:guest@127.0.0.1:5672
//	go run . consume 5 amqp://guest:guest@127.0.0.1:5672
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	queue    = "orders"
	patience = 10 * time.Second
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: service publish|consume COUNT URL")
	}
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	connection, err := amqp.Dial(os.Args[3])
	must(err)
	defer connection.Close()
	channel, err := connection.Channel()
	must(err)
	_, err = channel.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	must(err)
	switch os.Args[1] {
	case "publish":
		publish(channel, count)
	case "consume":
		consume(channel, count)
	default:
		log.Fatal("usage: service publish|consume COUNT URL")
	}
}

// publish waits for the confirm of each order: then it is on the broker's disk.
func publish(channel *amqp.Channel, count int) {
	must(channel.Confirm(false))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for number := 1; number <= count; number++ {
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent,
			MessageId:    fmt.Sprintf("order-%d", number),
			Body:         []byte(fmt.Sprintf("order %d", number)),
		})
		must(err)
		confirmed, err := confirm.WaitContext(ctx)
		must(err)
		if !confirmed {
			log.Fatalf("the broker refused order %d", number)
		}
		fmt.Printf("confirmed: order %d\n", number)
	}
}

// consume acks each order when its work is done. An order without an ack comes again.
func consume(channel *amqp.Channel, count int) {
	must(channel.Qos(10, 0, false))
	orders, err := channel.Consume(queue, "", false, false, false, false, nil)
	must(err)
	for ; count > 0; count-- {
		select {
		case order := <-orders:
			fmt.Printf("done: %s (%s)\n", order.Body, order.MessageId)
			must(order.Ack(false))
		case <-time.After(patience):
			log.Fatal("no order came within 10 seconds")
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
