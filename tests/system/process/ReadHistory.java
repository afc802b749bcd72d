import java.io.File;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.avro.file.DataFileReader;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.message.BinaryMessageEncoder;

/** Reads a container file by the schema in its header; of each record, a line: event type, timestamp, the record as a
 *  single object in hexadecimal. */
public class ReadHistory {
    public static void main(String[] args) throws Exception {
        try (var reader = new DataFileReader<GenericRecord>(new File(args[0]), new GenericDatumReader<>())) {
            var encoder = new BinaryMessageEncoder<GenericRecord>(GenericData.get(), reader.getSchema());
            for (GenericRecord envelope : reader) {
                ByteBuffer object = encoder.encode(envelope);
                byte[] bytes = new byte[object.remaining()];
                object.get(bytes);
                var event = ((GenericRecord) envelope.get("event")).getSchema().getName();
                System.out.println(event + " " + envelope.get("timestamp") + " " + HexFormat.of().formatHex(bytes));
            }
        }
    }
}
