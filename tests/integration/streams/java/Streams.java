import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.stream.*;
import com.rabbitmq.stream.compression.Compression;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

/** What RabbitMQ's Java client does with streams. Prints one line for each thing that is as it should be. */
public class Streams {
  static final int SECONDS = 60;

  static void check(boolean isSo, String what) {
    if (!isSo) throw new AssertionError(what);
    System.out.println(what);
  }

  static void await(CountDownLatch latch, String what) throws InterruptedException {
    if (!latch.await(SECONDS, TimeUnit.SECONDS)) throw new AssertionError("waited in vain: " + what);
  }

  static void until(BooleanSupplier isSo, String what) throws InterruptedException {
    for (long end = System.nanoTime() + SECONDS * 1_000_000_000L; !isSo.getAsBoolean(); Thread.sleep(10))
      if (System.nanoTime() > end) throw new AssertionError("waited in vain: " + what);
  }

  interface BooleanSupplier { boolean getAsBoolean(); }

  static void send(Producer producer, int first, int count, boolean isNumbered, String filter) throws Exception {
    CountDownLatch told = new CountDownLatch(count);
    AtomicInteger refused = new AtomicInteger();
    for (int number = first; number < first + count; number++) {
      MessageBuilder message = producer.messageBuilder();
      if (isNumbered) message.publishingId(number);
      message.properties().messageId("m" + number).messageBuilder();
      message.applicationProperties().entry("region", filter).entry("number", number).messageBuilder();
      producer.send(message.addData(("body " + number).getBytes(UTF_8)).build(), status -> {
        if (!status.isConfirmed()) refused.incrementAndGet();
        told.countDown();
      });
    }
    await(told, "confirms");
    if (refused.get() > 0) throw new AssertionError(refused.get() + " were refused");
  }

  static void plain(Environment environment) throws Exception {
    environment.streamCreator().stream("java").maxLengthBytes(ByteCapacity.GB(1)).maxAge(Duration.ofHours(2)).create();
    Producer producer = environment.producerBuilder().stream("java").build();
    send(producer, 0, 5000, false, "x");
    List<Long> offsets = Collections.synchronizedList(new ArrayList<>());
    CountDownLatch read = new CountDownLatch(5000);
    Consumer consumer = environment.consumerBuilder().stream("java").offset(OffsetSpecification.first())
        .messageHandler((context, message) -> {
          String body = new String(message.getBodyAsBinary(), UTF_8);
          boolean isWhole = body.equals("body " + context.offset())
              && message.getProperties().getMessageIdAsString().equals("m" + context.offset())
              && message.getApplicationProperties().get("number").equals((int) context.offset());
          if (isWhole) offsets.add(context.offset());
          read.countDown();
        }).build();
    await(read, "messages");
    check(offsets.size() == 5000 && offsets.get(4999) == 4999, "messages come whole and in order");
    consumer.close();
    producer.close();
    StreamStats statistics = environment.queryStreamStats("java");
    check(statistics.firstOffset() == 0, "statistics have the first offset");
  }

  static void deduplication(Environment environment) throws Exception {
    environment.streamCreator().stream("java-once").create();
    for (int round = 0; round < 2; round++) {
      Producer producer = environment.producerBuilder().stream("java-once").name("once").build();
      check(producer.getLastPublishingId() == (round == 0 ? 0 : 100), "the last id of round " + round + " is known");
      send(producer, round == 0 ? 1 : 51, round == 0 ? 100 : 100, true, "x");
      producer.close();
    }
    check(count(environment, "java-once", 150) == 150, "numbers are stored once");
  }

  static int count(Environment environment, String stream, int least) throws Exception {
    AtomicInteger seen = new AtomicInteger();
    Producer marker = environment.producerBuilder().stream(stream).build();
    send(marker, 1_000_000, 1, false, "end");
    CountDownLatch end = new CountDownLatch(1);
    Consumer consumer = environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first())
        .messageHandler((context, message) -> {
          if (message.getApplicationProperties().get("region").equals("end")) end.countDown();
          else seen.incrementAndGet();
        }).build();
    await(end, "the end of " + stream);
    consumer.close();
    marker.close();
    return seen.get();
  }

  static void batches(Environment environment) throws Exception {
    environment.streamCreator().stream("java-batches").create();
    for (Compression compression : List.of(Compression.NONE, Compression.GZIP)) {
      Producer producer = environment.producerBuilder().stream("java-batches").subEntrySize(50)
          .compression(compression).build();
      send(producer, 0, 500, false, "x");
      producer.close();
    }
    check(count(environment, "java-batches", 1000) == 1000, "batches are unpacked");
  }

  static void tracking(Environment environment) throws Exception {
    for (int round = 0; round < 2; round++) {
      int first = round * 1000;
      CountDownLatch read = new CountDownLatch(1000);
      AtomicLong start = new AtomicLong(-1);
      Consumer consumer = environment.consumerBuilder().stream("java").name("tracker")
          .offset(OffsetSpecification.first()).manualTrackingStrategy().builder()
          .messageHandler((context, message) -> {
            start.compareAndSet(-1, context.offset());
            if (context.offset() == first + 999) context.storeOffset();
            read.countDown();
          }).build();
      await(read, "the first thousand");
      check(start.get() == first, "reader " + round + " goes on where the last one stored");
      until(() -> consumer.storedOffset() == first + 999, "the stored offset");
      consumer.close();
    }
  }

  static void filters(Environment environment) throws Exception {
    environment.streamCreator().stream("java-filter").create();
    Producer producer = environment.producerBuilder().stream("java-filter")
        .filterValue(message -> (String) message.getApplicationProperties().get("region")).build();
    for (String region : List.of("emea", "apac", "amer")) send(producer, 0, 100, false, region);
    producer.close();
    Set<Object> regions = ConcurrentHashMap.newKeySet();
    CountDownLatch read = new CountDownLatch(100);
    Consumer consumer = environment.consumerBuilder().stream("java-filter").offset(OffsetSpecification.first())
        .filter().values("apac").postFilter(m -> "apac".equals(m.getApplicationProperties().get("region"))).builder()
        .messageHandler((context, message) -> {
          regions.add(message.getApplicationProperties().get("region"));
          read.countDown();
        }).build();
    await(read, "what the filter lets through");
    check(regions.equals(Set.of("apac")), "a filter lets its values through");
    consumer.close();
  }

  static void superStreams(Environment environment) throws Exception {
    environment.streamCreator().name("java-super").superStream().partitions(3).creator().create();
    Producer producer = environment.producerBuilder().superStream("java-super")
        .routing(message -> message.getProperties().getMessageIdAsString()).producerBuilder().build();
    Set<String> bodies = ConcurrentHashMap.newKeySet();
    Set<String> streams = ConcurrentHashMap.newKeySet();
    List<Consumer> consumers = new ArrayList<>();
    for (int number = 0; number < 2; number++)
      consumers.add(environment.consumerBuilder().superStream("java-super").name("group").singleActiveConsumer()
          .offset(OffsetSpecification.first()).autoTrackingStrategy().messageCountBeforeStorage(30).builder()
          .messageHandler((context, message) -> {
            streams.add(context.stream());
            bodies.add(new String(message.getBodyAsBinary(), UTF_8));
          }).build());
    send(producer, 0, 300, false, "x");
    until(() -> bodies.size() == 300, "all messages of a super stream");
    consumers.get(0).close();
    send(producer, 300, 300, false, "x");
    until(() -> bodies.size() == 600, "messages after a consumer left");
    check(streams.size() == 3, "a super stream has three partitions, and one of two consumers goes on alone");
    consumers.get(1).close();
    producer.close();
    environment.deleteSuperStream("java-super");
    check(!environment.streamExists("java-super-0"), "a super stream goes with its partitions");
  }

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[0]);
    try (Environment environment = Environment.builder().port(port).build()) {
      plain(environment);
      deduplication(environment);
      batches(environment);
      tracking(environment);
      filters(environment);
      superStreams(environment);
      environment.deleteStream("java");
      check(!environment.streamExists("java"), "a stream is deleted");
    }
    System.out.println("done");
    System.exit(0);
  }
}
