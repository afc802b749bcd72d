// A service: publishes orders with confirms, and consumes them with acks, over amqplib.
//
//     npm ci
//     node service.js publish 5 amqp://guest:guest@127.0.0.1:5672
//     node service.js consume 5 amqp://guest:guest@127.0.0.1:5672
"use strict";

const amqp = require("amqplib");

const QUEUE = "orders";
const PATIENCE_MS = 10_000;

// `publish` has `waitForConfirms` of each order: then it is on the broker's disk.
async function publish(connection, count) {
  const channel = await connection.createConfirmChannel();
  await declare(channel);
  for (let number = 1; number <= count; number += 1) {
    channel.sendToQueue(QUEUE, Buffer.from(`order ${number}`), {
      persistent: true,
      mandatory: true,
      messageId: `order-${number}`,
    });
    await channel.waitForConfirms();
    console.log(`confirmed: order ${number}`);
  }
}

// `consume` acks each order when its work is done. An order without an ack comes again.
async function consume(connection, count) {
  const channel = await connection.createChannel();
  await declare(channel);
  await channel.prefetch(10);
  await new Promise((resolve, reject) => {
    const giveUp = () => reject(new Error("no order came within 10 seconds"));
    let timer = setTimeout(giveUp, PATIENCE_MS);
    channel.consume(QUEUE, (order) => {
      if (count === 0) return; // it was sent ahead, and goes back to the queue when the channel closes
      clearTimeout(timer);
      console.log(`done: ${order.content} (${order.properties.messageId})`);
      channel.ack(order);
      count -= 1;
      if (count === 0) resolve();
      else timer = setTimeout(giveUp, PATIENCE_MS);
    });
  });
  await channel.close(); // sends the acks before it
}

function declare(channel) {
  return channel.assertQueue(QUEUE, { durable: true, arguments: { "x-queue-type": "quorum" } });
}

async function main(what, count, url) {
  const programs = { publish, consume };
  if (!(what in programs) || url === undefined) throw new Error("usage: node service.js publish|consume COUNT URL");
  const connection = await amqp.connect(url);
  try {
    await programs[what](connection, Number(count));
  } finally {
    await connection.close();
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
