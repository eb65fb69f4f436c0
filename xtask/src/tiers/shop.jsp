<%@ page contentType="text/html; charset=UTF-8" session="false" import="
  java.io.*, java.nio.charset.StandardCharsets, java.nio.file.*, java.sql.*, java.util.*,
  java.util.concurrent.ThreadLocalRandom, java.util.concurrent.atomic.AtomicInteger,
  javax.naming.InitialContext, javax.naming.NamingException, javax.sql.DataSource" %><%!
  /** The mean price of a category, its dearest items, and the neighbours of one of them. */
  private static final String MEAN = "SELECT COUNT(*), AVG(price) FROM item WHERE category = ?";
  private static final String DEAREST =
      "SELECT id, name, price FROM item WHERE category = ? ORDER BY price DESC LIMIT 40";
  private static final String NEIGHBOURS =
      "SELECT id, name, price FROM item WHERE id BETWEEN ? - 10 AND ? + 10";
  /** How often the rows are sorted and written, which is the work of this tier. */
  private static final int PASSES = @PASSES@;

  private final AtomicInteger waiting = new AtomicInteger();
  private final AtomicInteger inUse = new AtomicInteger();
  private DataSource pool;

  private static final class Item {
    final int id;
    final String name;
    final int price;

    Item(int id, String name, int price) {
      this.id = id;
      this.name = name;
      this.price = price;
    }
  }

  @Override
  public void jspInit() {
    try {
      pool = (DataSource) new InitialContext().lookup("java:comp/env/jdbc/shop");
    } catch (NamingException error) {
      throw new IllegalStateException(error);
    }
    Thread sampler = new Thread(this::sample, "sampler");
    sampler.setDaemon(true);
    sampler.start();
  }

  /** Samples the pool and the speed of the database's core every 50 ms. */
  private void sample() {
    Path speed = Paths.get(System.getProperty("lull.speed"));
    try (Writer out = new FileWriter(System.getProperty("lull.samples"), StandardCharsets.UTF_8)) {
      out.write("unix_ms,back_khz,waiting,in_use\n");
      while (true) {
        // Before the cores are emulated there is nothing to sample.
        if (Files.exists(speed)) {
          String khz = Files.readString(speed).trim();
          out.write(System.currentTimeMillis() + "," + khz + "," + waiting + "," + inUse + "\n");
          out.flush();
        }
        Thread.sleep(50);
      }
    } catch (IOException error) {
      getServletContext().log("the sampler ends", error);
    } catch (InterruptedException end) {
      // Tomcat stops.
    }
  }

  private Connection connect() throws SQLException {
    waiting.incrementAndGet();
    try {
      Connection connection = pool.getConnection();
      inUse.incrementAndGet();
      return connection;
    } finally {
      waiting.decrementAndGet();
    }
  }

  private static void read(PreparedStatement query, List<Item> into, int... keys)
      throws SQLException {
    for (int at = 0; at < keys.length; at++) {
      query.setInt(at + 1, keys[at]);
    }
    try (ResultSet rows = query.executeQuery()) {
      while (rows.next()) {
        into.add(new Item(rows.getInt(1), rows.getString(2), rows.getInt(3)));
      }
    }
  }
%><%
  int category = ThreadLocalRandom.current().nextInt(140);
  List<Item> items = new ArrayList<>();
  double mean;
  Connection connection = connect();
  try (connection) {
    try (PreparedStatement query = connection.prepareStatement(MEAN)) {
      query.setInt(1, category);
      try (ResultSet rows = query.executeQuery()) {
        rows.next();
        mean = rows.getDouble(2);
      }
    }
    try (PreparedStatement query = connection.prepareStatement(DEAREST)) {
      read(query, items, category);
    }
    try (PreparedStatement query = connection.prepareStatement(NEIGHBOURS)) {
      read(query, items, items.get(0).id, items.get(0).id);
    }
  } finally {
    inUse.decrementAndGet();
  }
  StringBuilder list = new StringBuilder();
  for (int pass = 0; pass < PASSES; pass++) {
    list.setLength(0);
    Comparator<Item> order = Comparator.comparing(item -> item.name);
    items.sort(pass % 2 == 0 ? order : order.reversed());
    for (Item item : items) {
      list.append(String.format("<li>%d %s: %.2f (%+.1f %%)</li>%n", item.id, item.name,
          item.price / 100.0, 100.0 * (item.price / mean - 1.0)));
    }
  }
%><html><body><h1>Category <%= category %></h1><ul><%= list %></ul></body></html>
