import static com.rabbitmq.client.amqp.ConsumerBuilder.StreamOffsetSpecification.FIRST;
import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.amqp.*;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.time.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.UnaryOperator;

/** What RabbitMQ's AMQP 1.0 client for Java does. Prints a line for each step, and what failed in it. */
public class Amqp {
  static final int SECONDS = 30;
  static final List<String> failed = new ArrayList<>();
  static Connection connection;
  static Management management;

  interface Step { void run() throws Exception; }

  static void step(String name, Step step) {
    try {
      step.run();
      System.out.println(name);
    } catch (Throwable error) {
      failed.add(name);
      System.out.println("FAILED " + name + ": " + error);
      error.printStackTrace(System.out);
    }
  }

  static void same(Object found, Object wanted) {
    if (!Objects.equals(found, wanted)) throw new AssertionError(found + " and not " + wanted);
  }

  static void await(CountDownLatch latch, String what) throws InterruptedException {
    if (!latch.await(SECONDS, TimeUnit.SECONDS)) throw new AssertionError("waited in vain: " + what);
  }

  static void publish(Publisher publisher, String... bodies) throws Exception {
    CountDownLatch accepted = new CountDownLatch(bodies.length);
    for (String body : bodies) {
      Message message = publisher.message(body.getBytes(UTF_8)).messageId(body).subject("s-" + body);
      message.property("color", body.startsWith("r") ? "red" : "blue").property("n", body.length());
      publisher.publish(message, told -> {
        if (told.status() == Publisher.Status.ACCEPTED) accepted.countDown();
      });
    }
    await(accepted, "acceptance");
  }

  static void publishTo(String queue, String... bodies) throws Exception {
    try (Publisher publisher = connection.publisherBuilder().queue(queue).build()) {
      publish(publisher, bodies);
    }
  }

  /** The first messages that a consumer gets, each accepted; one more than there should be if it comes at once. */
  static List<String> read(ConsumerBuilder builder, int count) throws Exception {
    BlockingQueue<String> got = new LinkedBlockingQueue<>();
    List<String> found = new ArrayList<>();
    Consumer.MessageHandler handler = (context, message) -> {
      got.add(new String(message.body(), UTF_8));
      context.accept();
    };
    try (Consumer consumer = builder.messageHandler(handler).build()) {
      while (found.size() < count) {
        String body = got.poll(SECONDS, TimeUnit.SECONDS);
        if (body == null) break;
        found.add(body);
      }
      String more = got.poll(100, TimeUnit.MILLISECONDS);
      if (more != null) found.add(more);
    }
    return found;
  }

  static List<String> read(String queue, int count) throws Exception {
    return read(connection.consumerBuilder().queue(queue), count);
  }

  static List<String> readStream(String queue, int count, UnaryOperator<ConsumerBuilder.StreamOptions> options)
      throws Exception {
    return read(options.apply(connection.consumerBuilder().queue(queue).stream()).builder(), count);
  }

  static List<String> filtered(UnaryOperator<ConsumerBuilder.StreamFilterOptions> filter) throws Exception {
    return readStream("js", 2, options -> filter.apply(options.offset(FIRST).filter()).stream());
  }

  static void classic() throws Exception {
    management.queue("jc").type(Management.QueueType.CLASSIC).declare();
    management.queue("jc").type(Management.QueueType.CLASSIC).declare();
    publishTo("jc", "red1", "blue1");
    Management.QueueInfo info = management.queueInfo("jc");
    same(info.type(), Management.QueueType.CLASSIC);
    same(info.messageCount(), 2L);
    same(info.durable(), true);
    same(info.members(), List.of(info.leader()));
    same(read("jc", 2), List.of("red1", "blue1"));
    try {
      management.queue("jc").type(Management.QueueType.QUORUM).declare();
      throw new AssertionError("declared again as another type");
    } catch (AmqpException refused) {
      same(refused.getMessage().contains("inequivalent arg 'x-queue-type' for queue 'jc' in vhost '/'"), true);
    }
  }

  static void requeued() throws Exception {
    management.queue("jq").quorum().deliveryLimit(3).queue().declare();
    publishTo("jq", "x");
    same(management.queueInfo("jq").type(), Management.QueueType.QUORUM);
    CountDownLatch tries = new CountDownLatch(3);
    Consumer.MessageHandler handler = (context, message) -> {
      tries.countDown();
      if (tries.getCount() > 0) context.requeue(Map.of("x-opt-left", tries.getCount()));
      else context.accept();
    };
    try (Consumer consumer = connection.consumerBuilder().queue("jq").messageHandler(handler).build()) {
      await(tries, "the message again");
    }
  }

  static void discarded() throws Exception {
    management.queue("jdead").quorum().queue().declare();
    management.queue("jlive").quorum().queue().deadLetterExchange("").deadLetterRoutingKey("jdead").declare();
    publishTo("jlive", "x");
    Consumer.MessageHandler handler = (context, message) -> context.discard();
    try (Consumer consumer = connection.consumerBuilder().queue("jlive").messageHandler(handler).build()) {
      same(read("jdead", 1), List.of("x"));
    }
  }

  static void exchanges() throws Exception {
    management.exchange("jx").type(Management.ExchangeType.TOPIC).declare();
    management.queue("jxq").quorum().queue().declare();
    management.binding().sourceExchange("jx").destinationQueue("jxq").key("a.#").bind();
    management.binding().sourceExchange("jx").destinationQueue("jxq").key("b").argument("z", 1).bind();
    try (Publisher publisher = connection.publisherBuilder().exchange("jx").key("a.b").build()) {
      publish(publisher, "red");
    }
    CountDownLatch accepted = new CountDownLatch(1), released = new CountDownLatch(1);
    try (Publisher anywhere = connection.publisherBuilder().build()) {
      Message routed = anywhere.message("to".getBytes(UTF_8)).toAddress().exchange("jx").key("a").message();
      Message unrouted = anywhere.message("lost".getBytes(UTF_8)).toAddress().exchange("jx").key("nobody").message();
      anywhere.publish(routed, told -> { if (told.status() == Publisher.Status.ACCEPTED) accepted.countDown(); });
      anywhere.publish(unrouted, told -> { if (told.status() == Publisher.Status.RELEASED) released.countDown(); });
      await(accepted, "acceptance");
      await(released, "release");
    }
    same(read("jxq", 2), List.of("red", "to"));
    management.unbind().sourceExchange("jx").destinationQueue("jxq").key("b").argument("z", 1).unbind();
    management.unbind().sourceExchange("jx").destinationQueue("jxq").key("a.#").unbind();
    management.exchangeDelete("jx");
  }

  static void streams() throws Exception {
    management.queue("js").stream().maxAge(Duration.ofDays(1)).queue().declare();
    publishTo("js", "red1", "blue1", "red2", "blue22");
    List<String> all = List.of("red1", "blue1", "red2", "blue22");
    same(management.queueInfo("js").type(), Management.QueueType.STREAM);
    same(readStream("js", 4, options -> options.offset(FIRST)), all);
    same(readStream("js", 2, options -> options.offset(2)), List.of("red2", "blue22"));
    same(readStream("js", 4, options -> options.offset("5m")), all);
    same(readStream("js", 4, options -> options.offset(Instant.now().minusSeconds(60))), all);
  }

  static void filters() throws Exception {
    same(filtered(filter -> filter.property("color", "red")), List.of("red1", "red2"));
    same(filtered(filter -> filter.subject("&p:s-blue")), List.of("blue1", "blue22"));
    same(filtered(filter -> filter.messageId("&s:2").property("n", 6)), List.of("blue22"));
    String parity = "properties.subject LIKE 's-red%' AND color = 'red' AND n % 2 = 0 AND p.to IS NULL";
    same(filtered(filter -> filter.sql(parity.replace("p.to", "p.group_id"))), List.of("red1", "red2"));
    same(filtered(filter -> filter.sql("p.message_id IN ('red2', 'no') OR a.n > 5")), List.of("red2", "blue22"));
    String durable = "header.durable AND UTC() > 1000 AND \"color\" <> 'red'";
    same(filtered(filter -> filter.sql(durable)), List.of("blue1", "blue22"));
    try {
      filtered(filter -> filter.sql(parity));
      throw new AssertionError("a name that filters do not read was taken");
    } catch (AmqpException refused) {
      same(refused.getMessage().contains("filters read no such name of properties"), true);
    }
  }

  static void filterValues() throws Exception {
    management.queue("jf").stream().queue().declare();
    CountDownLatch accepted = new CountDownLatch(3);
    try (Publisher publisher = connection.publisherBuilder().queue("jf").build()) {
      for (String value : List.of("invoice", "order", "")) {
        Message message = publisher.message(("of " + value).getBytes(UTF_8));
        if (!value.isEmpty()) message.annotation("x-stream-filter-value", value);
        publisher.publish(message, told -> accepted.countDown());
      }
      await(accepted, "acceptance");
    }
    same(readStream("jf", 1, options -> options.offset(FIRST).filterValues("invoice")), List.of("of invoice"));
    List<String> orders = List.of("of order", "of ");
    same(readStream("jf", 2, all -> all.offset(FIRST).filterValues("order").filterMatchUnfiltered(true)), orders);
  }

  static void consumers() throws Exception {
    publishTo("jc", "p1", "p2");
    same(read(connection.consumerBuilder().queue("jc").priority(5).initialCredits(1), 2), List.of("p1", "p2"));
    publishTo("jc", "p1", "p2");
    CountDownLatch got = new CountDownLatch(2);
    ConsumerBuilder builder = connection.consumerBuilder().queue("jc").preSettled();
    try (Consumer consumer = builder.messageHandler((context, message) -> got.countDown()).build()) {
      await(got, "settled messages");
    }
    publishTo("jc", "b1", "b2", "b3");
    CountDownLatch batched = new CountDownLatch(1);
    List<Consumer.BatchContext> batches = new ArrayList<>();
    Consumer.MessageHandler handler = (context, message) -> {
      if (batches.isEmpty()) batches.add(context.batch(3));
      batches.get(0).add(context);
      if (batches.get(0).size() < 3) return;
      batches.get(0).accept();
      batched.countDown();
    };
    try (Consumer consumer = connection.consumerBuilder().queue("jc").messageHandler(handler).build()) {
      await(batched, "a batch");
    }
    for (int tries = 0; management.queueInfo("jc").messageCount() > 0 && tries < 100; tries++) Thread.sleep(20);
    same(management.queueInfo("jc").messageCount(), 0L);
  }

  static void requests() throws Exception {
    Responder responder = connection.responderBuilder().requestQueue("jc").handler((context, message) ->
        context.message(("re " + new String(message.body(), UTF_8)).getBytes(UTF_8))).build();
    Requester requester = connection.requesterBuilder().requestAddress().queue("jc").requester().build();
    Message reply = requester.publish(requester.message("hello".getBytes(UTF_8))).get(SECONDS, TimeUnit.SECONDS);
    same(new String(reply.body(), UTF_8), "re hello");
    requester.close();
    responder.close();
  }

  static void purgedAndDeleted() throws Exception {
    String name = management.queue().exclusive(true).autoDelete(true).declare().name();
    publishTo(name, "a", "b");
    same(management.queuePurge(name).messageCount(), 2L);
    management.queueDelete(name);
    try {
      management.queueInfo(name);
      throw new AssertionError("the queue is still there");
    } catch (AmqpException.AmqpEntityDoesNotExistException expected) {
      for (String queue : List.of("jc", "jq", "jdead", "jlive", "jxq", "js", "jf")) management.queueDelete(queue);
    }
  }

  public static void main(String[] words) {
    int port = Integer.parseInt(words[0]);
    Environment environment =
        new AmqpEnvironmentBuilder().connectionSettings().port(port).environmentBuilder().build();
    connection = environment.connectionBuilder().build();
    management = connection.management();
    step("classic queues", Amqp::classic);
    step("messages that are given back", Amqp::requeued);
    step("messages that are discarded", Amqp::discarded);
    step("exchanges", Amqp::exchanges);
    step("streams from an offset, an age and a time", Amqp::streams);
    step("filters of properties and in SQL", Amqp::filters);
    step("filter values of streams", Amqp::filterValues);
    step("consumers with a priority, without settling, in batches", Amqp::consumers);
    step("requests and replies", Amqp::requests);
    step("purge and delete", Amqp::purgedAndDeleted);
    connection.close();
    environment.close();
    if (!failed.isEmpty()) System.exit(1);
    System.out.println("done");
  }
}
