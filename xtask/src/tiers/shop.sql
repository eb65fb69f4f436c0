-- The back tier: items in 140 categories, and an account that can only read them.
CREATE DATABASE shop;
USE shop;
CREATE TABLE item (
  id INT PRIMARY KEY,
  category INT NOT NULL,
  price INT NOT NULL,
  name VARCHAR(40) NOT NULL,
  KEY (category)
) ENGINE = InnoDB;
INSERT INTO item
  SELECT seq, seq % 140, (seq * 7919) % 10007, CONCAT('item ', MD5(seq)) FROM seq_1_to_50000;
ANALYZE TABLE item;
CREATE USER shop@localhost, shop@'127.0.0.1';
GRANT SELECT ON shop.* TO shop@localhost, shop@'127.0.0.1';
