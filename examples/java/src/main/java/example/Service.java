package example;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * A service: publishes orders with confirms, and consumes them with acks, over RabbitMQ's own client for Java.
 *
 * <pre>
 * mvn -q compile exec:java -Dexec.args="publish 5 amqp://guest:guest@127.0.0.1:5672"
 * mvn -q compile exec:java -Dexec.args="consume 5 amqp://guest:guest@127.0.0.1:5672"
 * </pre>
 *
 * A URL that ended in "/" would name the vhost "" for this client; without it the vhost is "/".
 */
public final class Service {
  private static final String QUEUE = "orders";
  private static final int PATIENCE_MS = 10_000;

  private Service() {}

  public static void main(String[] words) throws Exception {
    if (words.length != 3) {
      throw new IllegalArgumentException("usage: publish|consume COUNT URL");
    }
    int count = Integer.parseInt(words[1]);
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(words[2]);
    try (Connection connection = factory.newConnection();
        Channel channel = connection.createChannel()) {
      channel.queueDeclare(QUEUE, true, false, false, Map.of("x-queue-type", "quorum"));
      switch (words[0]) {
        case "publish" -> publish(channel, count);
        case "consume" -> consume(channel, count);
        default -> throw new IllegalArgumentException("usage: publish|consume COUNT URL");
      }
    }
  }

  /** Waits for the confirm of each order: then it is on the broker's disk. */
  private static void publish(Channel channel, int count) throws Exception {
    channel.confirmSelect();
    for (int number = 1; number <= count; number++) {
      AMQP.BasicProperties properties =
          new AMQP.BasicProperties.Builder().deliveryMode(2).messageId("order-" + number).build();
      byte[] body = ("order " + number).getBytes(StandardCharsets.UTF_8);
      channel.basicPublish("", QUEUE, true, properties, body);
      channel.waitForConfirmsOrDie(PATIENCE_MS);
      System.out.println("confirmed: order " + number);
    }
  }

  /** Acks each order when its work is done. An order without an ack comes again. */
  private static void consume(Channel channel, int count) throws Exception {
    CountDownLatch left = new CountDownLatch(count);
    channel.basicQos(10);
    channel.basicConsume(
        QUEUE,
        new DefaultConsumer(channel) {
          @Override
          public void handleDelivery(
              String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
              throws IOException {
            if (left.getCount() == 0) {
              return; // it was sent ahead, and goes back to the queue when the channel closes
            }
            String order = new String(body, StandardCharsets.UTF_8);
            System.out.println("done: " + order + " (" + properties.getMessageId() + ")");
            getChannel().basicAck(envelope.getDeliveryTag(), false);
            left.countDown();
          }
        });
    if (!left.await(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
      throw new IllegalStateException("not all orders came within 10 seconds");
    }
  }
}
